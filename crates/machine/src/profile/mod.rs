//! Host profiles.
