//! (written in the commits that follow)
