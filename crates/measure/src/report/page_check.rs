//! Checks that every HTML page of a report must pass, for the tests of page generators.

/// Checks a page: it loads nothing, every figure is a number, and every element is closed.
///
/// # Panics
/// If one of these does not hold.
pub fn check(page: &str) {
    for word in ["<script", "@import", "url(", "src=", "<link", "NaN", "inf\""] {
        assert!(!page.contains(word), "{word}");
    }
    let mut open = vec!["html", "head", "style"];
    for tag in tags(page) {
        match tag.strip_prefix('/') {
            Some(tag) => assert_eq!(open.pop(), Some(tag)),
            None => open.push(tag),
        }
    }
    assert_eq!(open, [""; 0], "every element is closed");
}

/// The tags of a page, without their attributes, in order.
fn tags(page: &str) -> Vec<&str> {
    let ends = |c: char| c == '>' || c == ' ' || c == '\n';
    let style = page.find("</style>").expect("a style");
    let tags = page[style..].split('<').skip(1);
    tags.filter(|tag| !tag.split('>').next().is_some_and(|tag| tag.ends_with('/')))
        .filter_map(|tag| tag.split(ends).next())
        .collect()
}
