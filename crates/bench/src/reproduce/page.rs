//! A reproduction as one HTML page: plots, tables, criteria and their words.
//!
//! The page needs no script and no network, and follows the reader's choice of light or dark. It says what
//! is shown and how it was taken, since it will be read apart from the program.

use super::cell::number;
use super::json::{Document, Reproduction};
use super::plot::svg::{self, escape};
use super::text::{self, EXEMPT, FITTED, Grid, TextColumn};

/// The style sheet. The twelve colours stand out against both grounds.
const STYLE: &str = include_str!("page.css");

/// The page, whole.
pub fn render(document: &Document) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>napkin reproduce</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>Published beside modelled</h1>\n"
    );
    page.push_str(&introduction(document));
    page.push_str(&contents(document));
    for reproduction in &document.experiments {
        page.push_str(&section(reproduction));
    }
    page.push_str("</body>\n</html>\n");
    page
}

fn introduction(document: &Document) -> String {
    format!(
        "<p>Each section repeats a published experiment on how a host takes packets from its network \
         device. The published figures are those of the document, unchanged. The modelled ones come from a \
         simulation in virtual time, in which napkin's own delivery code makes every decision and a host \
         profile supplies the costs: processor, scheduler, network device, wire and clients. Each figure was \
         run with several seeds; the value is their mean, and the thin line through a point its 95 % \
         confidence interval.</p>\n\
         <p>In the plots, published figures are dashed or hollow and modelled ones solid. In the tables, \
         <b>{FITTED}</b> marks a figure that the profile was fitted to, so that its agreement proves nothing, \
         and <b>{EXEMPT}</b> one that is shown and not judged. Where a publication's estimator is not what \
         its name says, the modelled column repeats that estimator and the column <i>true</i> has what the \
         name promises. A figure that could not be modelled is a dash, and its reason stands below the \
         table.</p>\n<p class=\"small\">napkin {}</p>\n",
        escape(&document.version)
    )
}

/// The experiments, with how many of their criteria they met.
fn contents(document: &Document) -> String {
    let row = |reproduction: &Reproduction| {
        let met = reproduction.verdicts.iter().filter(|verdict| verdict.met).count();
        let name = escape(&reproduction.experiment);
        format!(
            "<tr><td><a href=\"#e{name}\">{name}</a></td><td>{}</td><td>{}</td></tr>\n",
            escape(&reproduction.title),
            escape(text::summary(met, reproduction.verdicts.len()).trim_end())
        )
    };
    let rows: String = document.experiments.iter().map(row).collect();
    format!(
        "<table class=\"words\">\n<tr><th>experiment</th><th></th><th>criteria</th></tr>\n{rows}</table>\n"
    )
}

fn section(reproduction: &Reproduction) -> String {
    let name = escape(&reproduction.experiment);
    let mut out = format!("<h2 id=\"e{name}\">{name}: {}</h2>\n", escape(&reproduction.title));
    for paragraph in reproduction.about.split("\n\n") {
        out.push_str(&format!("<p>{}</p>\n", escape(paragraph)));
    }
    if !reproduction.profiles.is_empty() {
        let profiles = escape(&reproduction.profiles.join(", "));
        out.push_str(&format!(
            "<p>Host profile: <code>{profiles}</code>. {}</p>\n",
            runs(reproduction)
        ));
    }
    if reproduction.quick {
        out.push_str("<p><b>A quick run: fewer and shorter runs than the figures need.</b></p>\n");
    }
    for note in &reproduction.notes {
        out.push_str(&format!("<p>Note: {}</p>\n", escape(note)));
    }
    out.push_str(&criteria(reproduction));
    for figure in &reproduction.figures {
        out.push_str(&format!(
            "<figure>\n<h3>{}</h3>\n{}<figcaption>{}</figcaption>\n</figure>\n",
            escape(&figure.title),
            svg::draw(figure),
            escape(&figure.caption)
        ));
    }
    out.push_str("<details><summary>Every figure, published beside modelled</summary>\n");
    for grid in text::grids(&reproduction.cells) {
        out.push_str(&table(&grid));
    }
    for reason in text::absences(&reproduction.cells) {
        out.push_str(&format!("<p class=\"small\">{}</p>\n", escape(&reason)));
    }
    out.push_str("</details>\n");
    out
}

/// How many runs the figures come from.
fn runs(reproduction: &Reproduction) -> String {
    let failed = reproduction.runs.iter().filter(|run| run.failed.is_some()).count();
    let all = number(reproduction.runs.len() as f64);
    match failed {
        0 => format!("{all} runs."),
        failed => format!("{all} runs, of which {failed} failed."),
    }
}

fn criteria(reproduction: &Reproduction) -> String {
    if reproduction.verdicts.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "<table class=\"words\">\n<tr><th></th><th>criterion</th><th>asked</th><th>got</th></tr>\n",
    );
    for verdict in &reproduction.verdicts {
        let (class, mark) = if verdict.met { ("met", "met") } else { ("missed", "missed") };
        out.push_str(&format!(
            "<tr class=\"{class}\"><td>{mark}</td><td>{}</td><td>{}</td><td>{}",
            escape(&verdict.what),
            escape(&verdict.asked),
            escape(&verdict.got)
        ));
        if !verdict.misses.is_empty() {
            let misses: String =
                verdict.misses.iter().map(|miss| format!("<li>{}</li>", escape(miss))).collect();
            out.push_str(&format!(
                "<details><summary>{} outside it</summary><ul>{misses}</ul></details>",
                verdict.misses.len()
            ));
        }
        out.push_str("</td></tr>\n");
    }
    out + "</table>\n"
}

fn table(grid: &Grid) -> String {
    let columns: Vec<(&TextColumn, &str)> = grid
        .leading
        .iter()
        .map(|column| (column, "name"))
        .chain(grid.quantities.iter().flat_map(|quantity| {
            quantity.iter().enumerate().map(|(i, c)| (c, if i == 0 { "first" } else { "" }))
        }))
        .collect();
    let mut out = String::from("<div class=\"wide\"><table>\n");
    if !grid.table.is_empty() {
        out.push_str(&format!("<caption>{}</caption>\n", escape(&grid.table)));
    }
    let line = |tag: &str, value: &dyn Fn(&TextColumn) -> Option<String>| {
        let cells = columns.iter().map(|(column, class)| {
            let value = value(column).unwrap_or_default();
            format!("<{tag} class=\"{class}\">{}</{tag}>", escape(&value))
        });
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    out.push_str(&line("th", &|column| Some(column.header.clone())));
    let rows = grid.leading.first().map_or(0, |column| column.values.len());
    for row in 0..rows {
        out.push_str(&line("td", &|column| column.values.get(row).cloned()));
    }
    out + "</table></div>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::fake::Fake;

    fn page(fake: &Fake) -> String {
        render(&Document::new(vec![fake.run()]))
    }

    /// The tags of a page, without their attributes, in order.
    fn tags(page: &str) -> Vec<&str> {
        let ends = |c: char| c == '>' || c == ' ' || c == '\n';
        let style = page.find("</style>").unwrap();
        let tags = page[style..].split('<').skip(1);
        tags.filter(|tag| !tag.split('>').next().unwrap().ends_with('/'))
            .map(|tag| tag.split(ends).next().unwrap())
            .collect()
    }

    #[test]
    fn the_page_needs_neither_script_nor_network() {
        let page = page(&Fake::default());
        for word in ["<script", "http://", "https://", "@import", "url(", "src="] {
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn every_element_is_closed_in_its_order() {
        let page = page(&Fake { panics: Some("b at 2"), ..Fake::default() });
        let mut open = vec!["html", "head", "style"];
        for tag in tags(&page) {
            match tag.strip_prefix('/') {
                Some(tag) => assert_eq!(open.pop(), Some(tag)),
                None => open.push(tag),
            }
        }
        assert_eq!(open, [""; 0]);
    }

    #[test]
    fn figures_criteria_and_reasons_are_all_there() {
        let page = page(&Fake { fails: Some("a at 2"), ..Fake::default() });
        for words in [
            "<p>Everything is invented.</p>",
            "1 of 2 criteria are not met.",
            "Host profile: <code>nowhere</code>. 12 runs, of which 3 failed.",
            "<h3>Latency &lt;p99&gt;</h3>",
            "not modelled (a, 2/s): no such load",
            "<td class=\"\">*114.5</td>",
            "<summary>4 outside it</summary>",
        ] {
            assert!(page.contains(words), "{words}\n{page}");
        }
        assert_eq!(page.matches("<svg").count(), 2);
    }

    #[test]
    fn what_an_experiment_says_cannot_become_markup() {
        let page = page(&Fake { title: "<b>&\"</b>", ..Fake::default() });
        assert!(
            page.contains("&lt;b&gt;&amp;&quot;&lt;/b&gt;") && !page.contains("<b>&"),
            "{page}"
        );
    }

    #[test]
    fn the_same_experiment_gives_the_same_page() {
        assert_eq!(page(&Fake::default()), page(&Fake::default()));
    }

    #[test]
    fn the_style_sheet_has_every_colour() {
        for colour in 0..svg::COLOURS {
            assert!(STYLE.contains(&format!(".c{colour} ")), "{colour}");
        }
    }
}
