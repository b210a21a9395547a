//! Rows of bars, each of which divides a whole: the split of CPU time.

use super::Shares;
use super::axis::number;
use super::svg::{Drawing, LETTER, LINE, MARGIN, Panel, WIDTH, escape, push_line, tenth, truncate};

const TOP: f64 = 8.0;
const ROW: f64 = 24.0;
const BAR: f64 = 16.0;

/// Longest name in characters.
const LONGEST: usize = 36;

pub(super) fn draw(shares: &Shares) -> Drawing {
    let letters = shares.rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0);
    let left = (LETTER * letters.min(LONGEST) as f64 + MARGIN).max(60.0);
    let bottom = TOP + ROW * shares.rows.len() as f64 + 4.0;
    let panel = Panel { left, right: WIDTH - MARGIN, top: TOP, bottom };
    let mut body = String::new();
    let ticks: Vec<(f64, String)> =
        (0..=5).map(|fifth| (f64::from(fifth) / 5.0, format!("{} %", fifth * 20))).collect();
    panel.columns(&mut body, &ticks, true);
    for (i, (name, parts)) in shares.rows.iter().enumerate() {
        let middle = TOP + ROW * (i as f64 + 0.5);
        push_line(
            &mut body,
            format_args!(
                "<text class=\"end\" x=\"{}\" y=\"{}\"><title>{}</title>{}</text>",
                tenth(left - 8.0),
                tenth(middle + 4.0),
                escape(name),
                escape(&truncate(name, LONGEST))
            ),
        );
        draw_bar(&mut body, &shares.parts, name, parts, panel, middle);
    }
    panel.frame(&mut body);
    let legend = shares.parts.iter().enumerate().map(|(i, part)| {
        let class = class(&shares.parts, i);
        (
            format!("<rect class=\"{class}\" x=\"3\" y=\"-10\" width=\"16\" height=\"11\"/>"),
            part.clone(),
        )
    });
    Drawing { body, height: bottom + 18.0 + LINE / 2.0, legend: legend.collect() }
}

/// Class of a part; the remainder is drawn empty.
fn class(parts: &[String], i: usize) -> String {
    if i + 1 == parts.len() { "part rest".to_owned() } else { format!("part s{i}") }
}

fn draw_bar(
    body: &mut String,
    names: &[String],
    row: &str,
    parts: &[f64],
    panel: Panel,
    middle: f64,
) {
    let mut from = 0.0;
    for (i, (name, part)) in names.iter().zip(parts).enumerate() {
        let (left, right) = (panel.x(from), panel.x((from + part).clamp(0.0, 1.0)));
        from += part;
        let (width, shown) = (tenth(right - left), format!("{} %", number(part * 100.0)));
        if width <= 0.0 {
            continue;
        }
        push_line(
            body,
            format_args!(
                "<rect class=\"{}\" x=\"{left}\" y=\"{}\" width=\"{width}\" height=\"{BAR}\"><title>{}, {}: \
                 {shown}</title></rect>",
                class(names, i),
                tenth(middle - BAR / 2.0),
                escape(row),
                escape(name)
            ),
        );
        let text = format!("{:.0} %", part * 100.0);
        if width > LETTER * (text.len() + 1) as f64 {
            let class = if i + 1 == names.len() { "mid" } else { "mid on" };
            push_line(
                body,
                format_args!(
                    "<text class=\"{class}\" x=\"{}\" y=\"{}\">{text}</text>",
                    tenth(f64::midpoint(left, right)),
                    tenth(middle + 4.0)
                ),
            );
        }
    }
    if parts.is_empty() {
        let (x, y) = (tenth(panel.left + 8.0), tenth(middle + 4.0));
        push_line(body, format_args!("<text class=\"none\" x=\"{x}\" y=\"{y}\">no figure</text>"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::plot::draw::draw;
    use crate::report::plot::{Figure, Plot};

    #[test]
    fn parts_stand_side_by_side_and_wide_ones_say_their_share() {
        let shares = Shares {
            parts: ["work", "poll", "asleep"].map(str::to_owned).into(),
            rows: vec![("base".into(), vec![0.25, 0.0, 0.75]), ("busypoll".into(), Vec::new())],
        };
        let plot = Plot::Shares(shares);
        let figure = Figure { title: "t".into(), caption: String::new(), plot, gaps: Vec::new() };
        let svg = draw(&figure);
        assert!(svg.contains("<title>base, work: 25 %</title>"), "{svg}");
        assert!(!svg.contains("base, poll"), "a part of nothing has no bar: {svg}");
        assert!(svg.contains(">75 %<") && svg.contains("part rest"), "{svg}");
        assert!(svg.contains(">no figure<"), "{svg}");
    }
}
