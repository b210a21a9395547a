//! Draws a figure's plot as one SVG element, with a legend below it.

use super::svg::{Drawing, LETTER, MARGIN, WIDTH, escape, push_line, tenth};
use super::{Figure, Plot, dots, lines, shares};

/// Height of a line of the legend.
const LEGEND_LINE: f64 = 20.0;

/// The SVG element of a figure's plot, including the legend.
pub(crate) fn draw(figure: &Figure) -> String {
    let Drawing { body, height, legend } = match &figure.plot {
        Plot::Lines(plot) => lines::draw(plot),
        Plot::Dots(plot) => dots::draw(plot),
        Plot::Shares(plot) => shares::draw(plot),
    };
    let (legend, below) = place_legend(&legend, height);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{}\">\n{body}{legend}</svg>\n",
        tenth(height + below),
        escape(&figure.title)
    )
}

/// The legend below the plot, in as many lines as needed, and their total height.
fn place_legend(entries: &[(String, String)], top: f64) -> (String, f64) {
    if entries.is_empty() {
        return (String::new(), 0.0);
    }
    let mut out = String::new();
    let (mut x, mut y) = (MARGIN, top + LEGEND_LINE);
    for (key, words) in entries {
        let width = 30.0 + LETTER * words.chars().count() as f64 + 18.0;
        if x + width > WIDTH && x > MARGIN {
            x = MARGIN;
            y += LEGEND_LINE;
        }
        push_line(
            &mut out,
            format_args!(
                "<g transform=\"translate({} {})\">{key}<text x=\"28\">{}</text></g>",
                tenth(x),
                tenth(y),
                escape(words)
            ),
        );
        x += width;
    }
    (out, y - top + LEGEND_LINE / 2.0)
}
