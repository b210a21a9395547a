//! A comparison as one HTML page, for example to attach to a change ticket.

use napkin_measure::report::page::{self, escape};
use napkin_measure::report::plot::{Axis, Dot, DotRow, Dots, Figure, Kind, Plot, Source};
use napkin_measure::report::{Provenance, text};

use crate::report::{Report, Row};
use crate::window::Slice;

/// Extracts a figure from a slice.
type Of = Box<dyn Fn(&Slice) -> Option<f64>>;

impl Report {
    /// The complete page.
    pub fn page(&self, provenance: &Provenance) -> String {
        let verdict = self.verdict();
        let mut body = format!("<p><b>Verdict:</b> {}.</p>\n", escape(&verdict.sentence));
        if let Some(failed) = &self.failed {
            body.push_str(&format!("<p><b>Ended early:</b> {}</p>\n", escape(failed)));
        }
        body.push_str(&page::facts(&provenance.facts()));
        body.push_str(&page::facts(&self.facts()));
        body.push_str(INTRODUCTION);
        body.push_str(&self.html_table());
        for figure in self.figures() {
            body.push_str(&page::figure(&figure));
        }
        let notes = self.notes.iter().chain(&verdict.notes);
        let notes: String = notes.map(|note| format!("<li>{}</li>\n", escape(note))).collect();
        if !notes.is_empty() {
            body.push_str(&format!("<ul class=\"small\">\n{notes}</ul>\n"));
        }
        page::whole(&format!("napkin compare: {} on {}", self.service, self.device), &body)
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let [slice, settle] = self.slice;
        let mut facts = vec![
            ("service", self.service.clone()),
            ("device", self.device.clone()),
            ("slices", format!("{slice} s, of which {settle} s to settle; {} rounds", self.rounds)),
            ("seed", self.seed.to_string()),
        ];
        let timed = |share| ("timed", format!("{} of the time", text::percent(share)));
        facts.extend(self.timed_share.map(timed));
        facts.extend(self.guard.clone().map(|it| ("guard", it)));
        facts.extend(self.measure.clone().map(|it| ("measure", it)));
        for row in self.rows.iter().filter(|row| row.name != row.policy) {
            facts.push(("policy", format!("{}: {}", row.name, row.policy)));
        }
        facts
    }

    fn html_table(&self) -> String {
        let cells = |tag: &str, cells: &mut dyn Iterator<Item = &str>| -> String {
            cells.map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect()
        };
        let head = cells("th", &mut self.header().into_iter());
        let rows: String = self
            .table()
            .iter()
            .map(|row| format!("<tr>{}</tr>\n", cells("td", &mut row.iter().map(String::as_str))))
            .collect();
        format!(
            "<div class=\"wide\">\n<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n"
        )
    }

    fn figures(&self) -> Vec<Figure> {
        let us = |part: &'static str, of| -> Of {
            let of = Row::part(part, of);
            Box::new(move |slice| Some(of(slice)? / 1e3))
        };
        let mut figures = Vec::new();
        if self.measure.is_some() {
            let measured: Of = Box::new(|slice| slice.measured);
            figures.push(self.figure(
                "The measure",
                "as the command printed it",
                true,
                &[("measure", measured)],
            ));
        }
        if self.rows.iter().any(|row| row.counted().any(|it| it.whole().count > 0)) {
            figures.push(self.figure(
                "Latency: the server's part",
                "us",
                true,
                &[
                    ("p50", us("whole", |it| it.p50)),
                    ("p99", us("whole", |it| it.p99)),
                    ("p99.9", us("whole", |it| it.p999)),
                ],
            ));
            figures.push(self.figure(
                "Where it comes from: p99 of each part",
                "us",
                true,
                &[
                    ("in the ring", us("ring", |it| it.p99)),
                    ("in the socket", us("socket", |it| it.p99)),
                    ("in service", us("service", |it| it.p99)),
                ],
            ));
        }
        figures.push(self.figure(
            "CPU",
            "CPUs",
            false,
            &[
                ("softirq", Box::new(|slice| Some(slice.cpu.softirq))),
                ("threads", Box::new(|slice| Some(slice.cpu.threads))),
                ("application", Box::new(|slice| Some(slice.cpu.application))),
                ("all", Box::new(|slice| Some(slice.cpu.all()))),
            ],
        ));
        figures
    }

    fn figure(&self, title: &str, label: &str, log: bool, kinds: &[(&str, Of)]) -> Figure {
        let row = |row: &Row| {
            let dot = |(kind, (_, of)): (usize, &(&str, Of))| {
                let spread = row.spread(of)?;
                let interval = (row.slices.len() > 1).then_some((spread.min, spread.max));
                Some(Dot { kind, value: spread.median, interval })
            };
            let dots = kinds.iter().enumerate().filter_map(dot).collect();
            DotRow { group: String::new(), name: row.name.clone(), dots }
        };
        let rows: Vec<DotRow> = self.rows.iter().map(row).collect();
        let gaps = rows.iter().filter(|row| row.dots.is_empty()).map(|row| row.name.clone());
        let kind = |(style, (name, _)): (usize, &(&str, _))| Kind {
            name: (*name).to_owned(),
            style,
            source: Source::Run,
        };
        Figure {
            title: title.into(),
            caption:
                "The middle of the slices; the thin line runs from the least to the most of them."
                    .into(),
            gaps: gaps.collect(),
            plot: Plot::Dots(Dots {
                x: Axis { label: label.into(), log },
                kinds: kinds.iter().enumerate().map(kind).collect(),
                rows,
            }),
        }
    }

    /// The lines below the table: notes, why the comparison ended early, and the verdict.
    pub fn lines(&self, width: usize) -> Vec<String> {
        let verdict = self.verdict();
        let notes = self.notes.iter().chain(&verdict.notes).map(|note| format!("note: {note}"));
        let failed = self.failed.iter().map(|why| format!("ended early: {why}"));
        let last = [format!("verdict: {}", verdict.sentence)];
        notes.chain(failed).chain(last).map(|line| text::wrap(&line, width)).collect()
    }
}

const INTRODUCTION: &str = "<p>Each policy was in force on the running service in turn, in an order of its own \
    each round. Latency is the server's own part of each request: in the receive ring; in the \
    socket, until it was read; in service, until it was answered. What the network and the client add is \
    not in it. Ratios are of the same round, with the interval that holds their middle.</p>\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_whole_and_what_it_says_cannot_become_markup() {
        let row = Row { name: "<base>".into(), slices: vec![Slice::default()], ..Row::default() };
        let report = Report { rows: vec![row], notes: vec!["a & b".into()], ..Report::default() };
        let provenance = Provenance::now(None);
        let page = report.page(&provenance);
        napkin_measure::report::page_check::check(&page);
        assert!(page.contains("&lt;base&gt;") && page.contains("a &amp; b"), "{page}");
    }
}
