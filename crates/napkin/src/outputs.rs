//! The output of a bench: text and tables on the terminal, figures and a page in files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use napkin_measure::conclusion;
use napkin_measure::report::{Column, Page, Provenance, Report, file, table, text};

use crate::attempt::Attempt;
use crate::failure::{Failure, print, say};

/// Fails if one of the files cannot be written. Called before anything runs.
pub(crate) fn check<'a>(files: impl IntoIterator<Item = &'a Path>) -> Result<(), Failure> {
    file::check_all(files).map_err(Failure::of)
}

/// Refuses an output file that is the input file, also by another name: a link counts as the same file.
pub(crate) fn check_not_input(read: &Path, out: &Path) -> Result<(), Failure> {
    if file::is_stdout(out) {
        return Ok(());
    }
    // A file that does not exist yet, or cannot be examined, is not the input.
    let (Ok(one), Ok(other)) = (fs::metadata(read), fs::metadata(out)) else { return Ok(()) };
    if other.is_file() && (one.dev(), one.ino()) == (other.dev(), other.ino()) {
        let out = out.display();
        let why = format!("{out} is what is read, and would be written over: name another file");
        return Err(Failure::Usage(why));
    }
    Ok(())
}

/// The destinations of the reports of one command.
#[derive(Debug)]
pub(crate) struct Outputs<'a> {
    /// The page's file.
    path: Option<&'a Path>,
    page: Page,
    /// The reports shown so far.
    reports: Vec<Report>,
    /// Whether figures, a timeline or the page go to standard output, so that text goes to standard error.
    stream: bool,
    /// Line width of text, in characters.
    width: usize,
    /// The last run, whose results are shown but not on a written page yet: its file is kept until then.
    last: Option<Attempt>,
}

/// The text that says what a workload shows, by its name.
fn description(workload: &str) -> &'static str {
    napkin_workload::find(workload).map_or("", |it| it.shows())
}

impl<'a> Outputs<'a> {
    /// Takes the files of figures and of a timeline, and the file of the page, as far as they were asked for.
    pub(crate) fn new(files: [Option<&Path>; 2], page: Option<&'a Path>) -> Outputs<'a> {
        let stream = files.into_iter().flatten().chain(page).any(file::is_stream);
        let width = match stream {
            true => text::line_width(std::io::stderr()),
            false => text::line_width(std::io::stdout()),
        };
        Outputs {
            path: page,
            page: Page::default(),
            reports: Vec::new(),
            stream,
            width,
            last: None,
        }
    }

    /// As [`check`], of these files and the page.
    pub(crate) fn check<'f>(
        &'f self,
        files: impl IntoIterator<Item = &'f Path>,
    ) -> Result<(), Failure> {
        check(files.into_iter().chain(self.path))
    }

    /// Prints what a workload shows, before it runs.
    pub(crate) fn announce(&self, heading: &str, workload: &str) -> Result<(), Failure> {
        let lines =
            [heading, description(workload)].map(|line| text::wrap(line, self.width) + "\n");
        self.print_text(&lines.concat())
    }

    /// Prints the table of a report with its notes and conclusion, and writes the report to its JSON file. With
    /// `whole`
    /// the histograms of receive times, which are long, are printed as well.
    pub(crate) fn show(
        &mut self,
        heading: &str,
        columns: &[&'static Column],
        report: &Report,
        json: Option<&Path>,
        whole: bool,
    ) -> Result<(), Failure> {
        self.page.add(heading, description(&report.workload), columns, report);
        self.reports.push(report.clone());
        let mut out = table::render(&report.rows, columns, self.width);
        let notes = report.notes.iter().map(|note| format!("note: {note}"));
        let conclusion = report.conclusion.iter().map(|it| format!("conclusion: {it}"));
        for line in notes.chain(conclusion) {
            out.push_str(&text::wrap(&line, self.width));
            out.push('\n');
        }
        let times = table::receive_times(&report.rows, columns, self.width);
        if whole && !times.is_empty() {
            out.push_str(&format!("\n{}\n", times.trim_end_matches('\n')));
        }
        out.push('\n');
        // The file comes first: a closed output must not prevent it.
        let written = json.map_or(Ok(()), |path| report.write(path).map_err(Failure::of));
        let printed = self.print_text(&out);
        written.and(printed)
    }

    /// Prints the reports of several worlds side by side, with the orders of policies on which the worlds disagree; or
    /// the reason why they cannot be compared.
    pub(crate) fn side_by_side(&self) -> Result<(), Failure> {
        if self.reports.len() < 2 {
            return Ok(());
        }
        let worlds: Vec<&str> = self.reports.iter().map(|it| it.world.as_str()).collect();
        if let Some(why) = conclusion::apart(&self.reports) {
            let line = format!("{} do not stand side by side: {why}", worlds.join(" and "));
            return self.print_text(&format!("{}\n", text::wrap(&line, self.width)));
        }
        let rows = conclusion::side_by_side(&self.reports);
        let mut out = format!("{}, side by side\n", worlds.join(", "));
        out.push_str(&table::render(&rows, &conclusion::WORLDS, self.width));
        let same =
            "conclusion: of what can be told, the worlds have every two policies in the same order";
        let none = "note: no two policies ran under the same load in two of the worlds: no order is compared";
        let lines = match conclusion::disagreements(&self.reports) {
            None => vec![none.to_owned()],
            Some(pairs) if pairs.is_empty() => vec![same.to_owned()],
            Some(pairs) => pairs.iter().map(|it| format!("conclusion: {it}")).collect(),
        };
        for line in lines {
            out.push_str(&text::wrap(&line, self.width));
            out.push('\n');
        }
        self.print_text(&out)
    }

    /// Takes a run that is shown and whose figures are written. Its file is removed once the page is written as well.
    pub(crate) fn finish_run(&mut self, attempt: Attempt) {
        let over = match self.path {
            Some(_) => self.last.replace(attempt),
            None => Some(attempt),
        };
        over.into_iter().for_each(Attempt::end);
    }

    /// Writes the page of all reports shown, if one was asked for.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let written = match self.path {
            Some(path) if !self.page.is_empty() => {
                let page = self.page.render(&Provenance::now(crate::COMMIT));
                file::write(path, &page).map_err(Failure::of)
            }
            _ => Ok(()),
        };
        match (written, self.last) {
            (Err(failure), Some(attempt)) => Err(attempt.failed(failure)),
            (written, last) => {
                last.into_iter().for_each(Attempt::end);
                written
            }
        }
    }

    fn print_text(&self, text: &str) -> Result<(), Failure> {
        if self.stream {
            // Standard output has the JSON: no text in between.
            say(text.trim_end());
            return Ok(());
        }
        print(text)
    }
}
