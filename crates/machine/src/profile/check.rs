//! Validation of a profile's values, whether they come from a file, a sweep or a fit.
//!
//! The parser has already checked that each value is of the right kind. This file checks the limits of each key, the
//! ranges of constants, and combinations of two keys.

use super::amount::Amount;
use super::error::Problem;
use super::schema::Schema;
use super::takes::ValueKind;
use super::{Basis, Constant};

/// The part of a constant that a problem is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Value,
    Range,
}

/// Returns all problems of these constants, which are in the order of the schema's keys: the index of the key, the
/// part, and the problem.
pub(super) fn problems(
    schema: &Schema,
    constants: &[Option<Constant>],
) -> Vec<(usize, Part, Problem)> {
    let frequency = frequency(schema, constants);
    let mut found = Vec::new();
    for (place, (key, constant)) in schema.keys().iter().zip(constants).enumerate() {
        let Some(constant) = constant else { continue };
        if let Err(problem) = limits(key.takes, &constant.amount, frequency) {
            found.push((place, Part::Value, problem));
        } else if let Err((part, problem)) = range(key.takes, constant, frequency) {
            found.push((place, part, problem));
        }
    }
    found.extend(queues_beyond_cpus(schema, constants));
    found.extend(odd_cpus(schema, constants));
    found
}

/// Returns the processor's frequency in hertz, which converts cycles, if there is a valid one.
pub(super) fn frequency(schema: &Schema, constants: &[Option<Constant>]) -> Option<f64> {
    let amount = &constant(schema, constants, "processor.frequency")?.amount;
    limits(ValueKind::Frequency, amount, None).ok()?;
    amount.value(None)
}

fn constant<'a>(
    schema: &Schema,
    constants: &'a [Option<Constant>],
    path: &str,
) -> Option<&'a Constant> {
    constants.get(schema.place(path)?)?.as_ref()
}

/// Checks a value against the limits of its kind. Cycles of an unknown frequency are only checked for being finite
/// and not negative, since the wrong frequency is reported already.
fn limits(takes: ValueKind, amount: &Amount, frequency: Option<f64>) -> Result<(), Problem> {
    let given = || match takes {
        // The index of an existing word; any other number is shown as it is.
        ValueKind::Choice(_) if amount.number.fract() == 0.0 => takes.show(amount.number),
        _ => amount.to_string(),
    };
    let value = amount.value(frequency).unwrap_or(amount.number);
    if !value.is_finite() {
        return Err(Problem::NotFinite { given: given() });
    }
    if value < 0.0 {
        return Err(Problem::Negative { given: amount.to_string() });
    }
    if amount.value(frequency).is_none() {
        return Ok(());
    }
    let (least, most) = takes.limits();
    if value < least {
        return Err(Problem::TooSmall { given: given(), least: takes.show(least) });
    }
    if value > most {
        return Err(Problem::TooLarge { given: given(), most: takes.show(most) });
    }
    if takes.whole() && value.fract() != 0.0 {
        return Err(Problem::NotWhole { given: given() });
    }
    Ok(())
}

/// Checks a value against its range, if it has one, and the range against the limits of the key.
fn range(
    takes: ValueKind,
    constant: &Constant,
    frequency: Option<f64>,
) -> Result<(), (Part, Problem)> {
    let (Basis::Fitted { low, high }
    | Basis::Source { range: Some((low, high)), .. }
    | Basis::Assumed { range: Some((low, high)), .. }) = &constant.basis
    else {
        return Ok(());
    };
    for end in [low, high] {
        limits(takes, end, frequency).map_err(|problem| (Part::Range, problem))?;
    }
    let values = (low.value(frequency), constant.amount.value(frequency), high.value(frequency));
    let (Some(least), Some(value), Some(most)) = values else { return Ok(()) };
    if least > most {
        return Err((Part::Range, Problem::Reversed));
    }
    if value < least || value > most {
        let show = |amount: &Amount| match takes {
            ValueKind::Choice(_) => takes.show(amount.number),
            _ => amount.to_string(),
        };
        let (given, low, high) = (show(&constant.amount), show(low), show(high));
        return Err((Part::Value, Problem::OutOfRange { given, low, high }));
    }
    Ok(())
}

/// More queues than CPUs are a mistake in every published setup: each queue is to have a CPU of its own.
fn queues_beyond_cpus(
    schema: &Schema,
    constants: &[Option<Constant>],
) -> Option<(usize, Part, Problem)> {
    let queues = constant(schema, constants, "nic.queues")?.amount.value(None)?;
    let cpus = constant(schema, constants, "processor.cpus")?.amount.value(None)?;
    let place = schema.place("nic.queues")?;
    (queues > cpus).then_some((place, Part::Value, Problem::QueuesBeyondCpus { queues, cpus }))
}

/// With two threads per core siblings are half the CPUs apart, which needs an even number of CPUs.
fn odd_cpus(schema: &Schema, constants: &[Option<Constant>]) -> Option<(usize, Part, Problem)> {
    let smt = constant(schema, constants, "processor.smt")?.amount.value(None)?;
    let cpus = constant(schema, constants, "processor.cpus")?.amount.value(None)?;
    let place = schema.place("processor.cpus")?;
    let odd = smt == 2.0 && cpus % 2.0 == 1.0;
    odd.then_some((place, Part::Value, Problem::OddCpus { cpus }))
}

#[cfg(test)]
mod tests {
    use super::super::Profile;
    use super::Schema;

    /// Returns the error that a host of 28 cores with two threads each gives for these settings.
    fn refusal(settings: &[&str]) -> Option<String> {
        let mut profile = Profile::named(Schema::host(), "xeon-56").expect("built in");
        profile.set_texts(settings.iter().copied()).err().map(|error| error.to_string())
    }

    #[test]
    fn cores_of_two_threads_are_whole() {
        let odd = refusal(&["processor.cpus=55"]).expect("refused");
        assert!(odd.contains("processor.cpus: 55 CPUs cannot be cores"), "{odd}");
        assert_eq!(refusal(&["processor.cpus=54"]), None);
        assert_eq!(refusal(&["processor.cpus=55", "processor.smt=1"]), None);
        let four = refusal(&["processor.smt=4"]).expect("the machine knows pairs only");
        assert!(four.contains("at most 2 is allowed"), "{four}");
    }

    #[test]
    fn what_a_host_repeats_in_vain_takes_time() {
        for key in ["cost.poll", "cost.look"] {
            let free = refusal(&[&format!("{key}=0ns")]).expect("it would never end");
            assert!(free.contains("at least 1 ns"), "{free}");
            assert_eq!(refusal(&[&format!("{key}=1ns")]), None);
        }
    }
}
