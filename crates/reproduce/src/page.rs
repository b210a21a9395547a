//! A reproduction as one HTML page: plots, tables, criteria and explanations.
//!
//! It explains what is shown and how it was taken, because it is read apart from the program.

use super::cell::number;
use super::grid::{FITTED, Grid, TextColumn};
use super::json::{Document, Reproduction};
use super::text::{self, EXEMPT};
use napkin_measure::report::Provenance;
use napkin_measure::report::page::{self, escape};
use napkin_measure::report::proposal::Proposal;

/// Returns the complete page.
pub fn render(document: &Document, provenance: &Provenance) -> String {
    let mut body = introduction();
    body.push_str(&page::facts(&provenance.facts()));
    body.push_str(&contents(document));
    for reproduction in &document.experiments {
        body.push_str(&section(reproduction));
    }
    page::whole("napkin reproduce: published beside modelled", &body)
}

fn introduction() -> String {
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
         table.</p>\n"
    )
}

/// A table of the experiments, with the number of criteria met.
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
    let proposal = Proposal::of_year(&reproduction.experiment);
    out.push_str(&page::links(proposal.as_slice()));
    out.push_str(&criteria(reproduction));
    for figure in &reproduction.figures {
        out.push_str(&page::figure(figure));
    }
    if let Some(uncertainty) = &reproduction.uncertainty {
        out.push_str("<details><summary>How sure the orders are</summary>\n");
        for line in text::orders(uncertainty).iter().filter(|line| !line.is_empty()) {
            out.push_str(&format!("<p class=\"small\">{}</p>\n", escape(line)));
        }
        out.push_str("</details>\n");
    }
    if let Some(causes) = &reproduction.causes {
        out.push_str("<details><summary>Why rows are off</summary>\n");
        for line in causes.about() {
            out.push_str(&format!("<p class=\"small\">{}</p>\n", escape(&line)));
        }
        out.push_str(&table(&causes.grid()));
        let lines: String =
            causes.lines().iter().map(|line| format!("<li>{}</li>", escape(line))).collect();
        out.push_str(&format!("<ul>{lines}</ul></details>\n"));
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

/// The number of runs behind the figures.
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
        if !verdict.worst.is_empty() {
            let worst = escape(&verdict.worst.join("; "));
            out.push_str(&format!("<div class=\"small\">worst: {worst}</div>"));
        }
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
    use crate::fake::Fake;
    use napkin_measure::report::page_check::check;

    fn page(fake: &Fake) -> String {
        page_of(fake.run())
    }

    fn page_of(reproduction: Reproduction) -> String {
        let provenance = Provenance {
            date: "2030-01-02T03:04:05Z".to_owned(),
            version: "napkin 1, commit 0123abc".to_owned(),
            command: "napkin reproduce fake".to_owned(),
        };
        render(&Document::new(vec![reproduction]), &provenance)
    }

    #[test]
    fn the_page_is_whole_and_needs_neither_script_nor_network() {
        check(&page(&Fake { panics: Some("b at 2"), ..Fake::default() }));
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
            "<td>2030-01-02T03:04:05Z</td>",
            "<td>napkin reproduce fake</td>",
            "<summary>3 outside it</summary>",
        ] {
            assert!(page.contains(words), "{words}\n{page}");
        }
        assert_eq!(page.matches("<svg").count(), 2);
    }

    #[test]
    fn what_an_experiment_says_cannot_become_markup() {
        let title = "<b>&\"</b>".to_owned();
        let page = page_of(Reproduction { title, ..Fake::default().run() });
        assert!(
            page.contains("&lt;b&gt;&amp;&quot;&lt;/b&gt;") && !page.contains("<b>&"),
            "{page}"
        );
    }

    #[test]
    fn the_same_experiment_gives_the_same_page() {
        assert_eq!(page(&Fake::default()), page(&Fake::default()));
    }
}
