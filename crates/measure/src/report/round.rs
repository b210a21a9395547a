//! Rounds figures for output: 0.6769, not 0.6769000000000001.
//!
//! Binary fractions leave noise in the sixteenth digit of a sum or a quotient. It is removed only in output; values
//! used in calculations are never rounded.

use std::io;

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter};
use serde_json::{Number, Value};

/// Digits after the first: nine in total, more than any measurement has.
const DIGITS: usize = 8;

/// Rounds a figure. Whole numbers are unchanged.
pub fn rounded(figure: f64) -> f64 {
    if !figure.is_finite() || figure.fract() == 0.0 {
        return figure;
    }
    format!("{figure:.DIGITS$e}").parse().unwrap_or(figure)
}

/// A number as in the JSON output, rounded.
pub fn number(number: &Number) -> String {
    match number.as_f64().filter(|_| number.is_f64()) {
        Some(figure) => Value::from(rounded(figure)).to_string(),
        None => number.to_string(),
    }
}

/// Formats a report as indented JSON with rounded figures and a final newline.
///
/// # Errors
/// Those of `serde_json`.
pub fn json(value: &impl Serialize) -> serde_json::Result<String> {
    let mut text = Vec::new();
    let formatter = Rounding(PrettyFormatter::new());
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut text, formatter))?;
    text.push(b'\n');
    Ok(String::from_utf8_lossy(&text).into_owned())
}

struct Rounding(PrettyFormatter<'static>);

/// Methods that are delegated to the pretty formatter.
macro_rules! pretty {
    ($($name:ident($($first:ident)?);)*) => {
        $(
            fn $name<W: ?Sized + io::Write>(
                &mut self,
                writer: &mut W,
                $($first: bool,)?
            ) -> io::Result<()> {
                self.0.$name(writer, $($first)?)
            }
        )*
    };
}

impl Formatter for Rounding {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        self.0.write_f64(writer, rounded(value))
    }

    pretty! {
        begin_array();
        end_array();
        begin_array_value(first);
        end_array_value();
        begin_object();
        end_object();
        begin_object_key(first);
        begin_object_value();
        end_object_value();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn noise_goes_and_figures_stay() {
        for (noisy, plain) in [
            (0.676_900_000_000_000_1, 0.676_9),
            (1.001_250_000_000_000_2, 1.001_25),
            (0.1 + 0.2, 0.3),
            (1.0 / 3.0, 0.333_333_333),
            (123_456_789.25, 123_456_789.0),
            (12_345_678_901.0, 12_345_678_901.0),
            (-0.0, -0.0),
        ] {
            assert_eq!(rounded(noisy), plain);
        }
        assert!(rounded(f64::NAN).is_nan());
        let shown = [json!(2.0), json!(0.1 + 0.2), json!(7)];
        let shown = shown.map(|it| it.as_number().map(number));
        assert_eq!(shown, ["2.0", "0.3", "7"].map(|it| Some(it.to_owned())));
    }

    #[test]
    fn json_is_the_usual_one_but_for_the_figures() {
        let value = json!({"a": [0.676_900_000_000_000_1, 7, "x", null], "b": {}, "c": {"d": 0.5}});
        let text = super::json(&value).unwrap();
        assert_eq!(text, format!("{value:#}\n").replace("0.6769000000000001", "0.6769"));
        assert!(text.contains("0.6769,"), "{text}");
        let back: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(back["c"]["d"], 0.5);
    }

    #[test]
    fn once_is_enough_and_little_is_lost() {
        for exponent in -300..300 {
            let figure = 10_f64.powi(exponent) / 7.0;
            let once = rounded(figure);
            assert_eq!(rounded(once), once);
            assert!((once - figure).abs() <= figure * 1e-8, "{figure}");
        }
    }
}
