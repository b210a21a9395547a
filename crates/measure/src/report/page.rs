//! Common parts of all HTML pages: head and style, provenance, and figures.
//!
//! A page needs no script and no network, and follows the reader's light or dark mode. It states when, where and
//! how its figures were taken, because it is read apart from the program.

use super::plot::Figure;
use super::plot::draw::draw;
pub use super::plot::svg::escape;
use super::proposal::Proposal;

/// The style sheet. Each style's colour has a contrast of at least 4.5 with both backgrounds.
const STYLE: &str = include_str!("page.css");

/// The complete page around a body.
pub fn whole(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{0}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{0}</h1>\n{body}</body>\n</html>\n",
        escape(title)
    )
}

/// A table of facts that a reader needs first: names and values.
pub fn facts(facts: &[(&str, String)]) -> String {
    let row = |(name, value): &(&str, String)| {
        format!("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", escape(name), escape(value))
    };
    let rows: String = facts.iter().map(row).collect();
    format!("<table class=\"words facts\">\n{rows}</table>\n")
}

/// A figure with its title and caption, and a list of its missing values.
pub fn figure(figure: &Figure) -> String {
    let gaps: String = figure.gaps.iter().map(|gap| format!("<li>{}</li>", escape(gap))).collect();
    let gaps = match figure.gaps.len() {
        0 => String::new(),
        1..=4 => format!("<div class=\"small\">No figure:<ul>{gaps}</ul></div>\n"),
        many => format!(
            "<details class=\"small\"><summary>No figure: {many} rows</summary><ul>{gaps}</ul></details>\n"
        ),
    };
    format!(
        "<figure>\n<h3>{}</h3>\n<div class=\"wide\">\n{}</div>\n<figcaption>{}</figcaption>\n{gaps}</figure>\n",
        escape(&figure.title),
        draw(figure),
        escape(&figure.caption)
    )
}

/// A list of links to proposals, and to the kernel's documentation.
pub fn links(proposals: &[&Proposal]) -> String {
    let item = |it: &&Proposal| {
        format!(
            "<li><a href=\"{}\">{}: {}</a> ({})</li>\n",
            escape(it.url),
            it.year,
            escape(it.title),
            escape(it.by)
        )
    };
    let items: String = proposals.iter().map(item).collect();
    format!(
        "<ul>\n{items}<li><a href=\"{}\">NAPI</a>, in the kernel's documentation</li>\n</ul>\n",
        super::proposal::KERNEL_DOCUMENTATION
    )
}

#[cfg(test)]
mod tests {
    use super::super::plot::svg;
    use super::*;
    use crate::report::page_check::check;
    use crate::report::plot::{Axis, Dots, Plot};

    fn empty(gaps: &[&str]) -> Figure {
        let x = Axis { label: "us".into(), log: true };
        let plot = Plot::Dots(Dots { x, kinds: Vec::new(), rows: Vec::new() });
        let gaps = gaps.iter().map(|gap| (*gap).to_owned()).collect();
        Figure { title: "<p99>".into(), caption: "a & b".into(), plot, gaps }
    }

    #[test]
    fn what_a_figure_says_cannot_become_markup() {
        let page = whole("<b>", &figure(&empty(&["base: it \"failed\""])));
        check(&page);
        assert!(page.contains("&lt;p99&gt;") && page.contains("a &amp; b"), "{page}");
        assert!(page.contains("<li>base: it &quot;failed&quot;</li>"), "{page}");
    }

    #[test]
    fn many_gaps_are_folded() {
        let page = figure(&empty(&["a"; 5]));
        assert!(page.contains("No figure: 5 rows</summary>"), "{page}");
    }

    #[test]
    fn the_style_sheet_has_every_style() {
        for style in 0..svg::STYLES {
            assert_eq!(
                STYLE.matches(&format!("\n.s{style} {{ --c: var(--s{style}); }}")).count(),
                1
            );
            assert_eq!(STYLE.matches(&format!("--s{style}: #")).count(), 2, "light and dark");
        }
    }
}
