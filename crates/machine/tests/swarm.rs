//! A bounded swarm; `napkin swarm` runs one of any length.

use napkin_machine::swarm;

#[test]
fn random_machines_hold_every_invariant_and_replay_exactly() {
    // NAPKIN_SEED=n replays one seed; NAPKIN_SEEDS=n runs n seeds.
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds = match (number("NAPKIN_SEED"), number("NAPKIN_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(150u64),
    };
    let (mut time, mut steps, mut frames, mut faults) = (0, 0, 0, 0);
    for seed in seeds {
        let once = swarm::run(seed).unwrap_or_else(|broken| {
            panic!("{broken}\nreplay: NAPKIN_SEED={seed} cargo test -p napkin-machine --test swarm")
        });
        let twice = swarm::run(seed).unwrap_or_else(|broken| panic!("{broken}, but not before"));
        assert!(once.transcript == twice.transcript, "seed {seed} does not replay");
        time += once.virtual_ns;
        steps += once.steps;
        frames += once.frames;
        faults += once.faults;
    }
    println!("{} virtual s, {steps} steps, {frames} frames, {faults} faults", time as f64 / 1e9);
    assert!(frames > 0);
}

#[test]
fn a_round_belongs_to_the_cpu_whose_softirq_it_is() {
    // An application that had migrated to CPU 1 ran CPU 0's softirqs there, which polled a queue of CPU 1. The check
    // of the budget counted the frames in a round of CPU 1, which had none.
    swarm::run(29_138).unwrap_or_else(|broken| panic!("{broken}"));
}
