//! The `#[test]` attribute of `napkin-testing`, in a crate of its own, because a procedural macro's crate can
//! export nothing else.
//!
//! Version 0.1: anything may change between minor versions. Rust 1.91 or later, Linux.

use proc_macro::{TokenStream, TokenTree};

/// Adds a function without arguments to the tests that `napkin_testing::main!` runs.
#[proc_macro_attribute]
pub fn test(_: TokenStream, function: TokenStream) -> TokenStream {
    let mut tokens = function.clone().into_iter();
    tokens.by_ref().find(|token| matches!(token, TokenTree::Ident(it) if it.to_string() == "fn"));
    let name = tokens.next().map_or_else(String::new, |name| name.to_string());
    let entry = format!("::napkin_testing::register!({name});");
    function.into_iter().chain(entry.parse::<TokenStream>().unwrap_or_default()).collect()
}
