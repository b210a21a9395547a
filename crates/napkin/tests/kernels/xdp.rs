//! napkin on a card's own queues, by AF_XDP: zero copy if the driver supports it, else copy mode.

use super::cases::{Outcome, channels_of};
use super::guest::{Guest, STATE};
use super::programs::END;

/// Serves a port by AF_XDP, with all other traffic left to the kernel. Nothing is left at the end.
pub(crate) fn xdp(guest: &mut Guest, dev: &str) -> Outcome {
    if dev == "va" {
        return Ok("not this card's".into());
    }
    let (before, last) = (guest.set(dev), channels_of(dev) - 1);
    let (policy, napkin) = (guest.policy(), env!("CARGO_BIN_EXE_napkin"));
    guest.does(&format!(
        "rm -f /run/serve.out; NAPKIN_STATE={STATE} {napkin} serve echo --device xdp:{dev}:0-{last} --port 5000 \
         --policy {policy} --control /run/serve.sock > /run/serve.out 2>&1 & echo $! > /run/run.pid"
    ))?;
    let output = guest.does(
        "for i in $(seq 300); do grep -q control: /run/serve.out && break; sleep 0.1; done
        cat /run/serve.out",
    )?;
    let answers = guest.load(dev);
    let card = dev.trim_start_matches("eth");
    let kernel = guest.does(&format!("ping -c 3 -i 0.2 -W 5 -I {dev} 10.9.{card}.100"));
    let shown = guest.does(&format!("ip -d link show {dev}"));
    guest.does(END)?;
    let counts = guest.does("tail -2 /run/serve.out")?;
    let summary = format!("{answers} answers, {output}\n{counts}");
    if guest.does("cat /run/serve.out")?.contains("frames come by interrupts all the same") {
        return Err(format!("the driver is said not to let itself be polled: {summary}"));
    }
    kernel.map_err(|it| format!("the kernel's own traffic: {it}; {summary}"))?;
    if !shown?.contains("prog/xdp") {
        return Err(format!("no program at {dev}: {summary}"));
    }
    if guest.does(&format!("ip -d link show {dev}"))?.contains("prog/xdp") {
        return Err(format!("its program is left at {dev}"));
    }
    guest.left(dev, &before)?;
    let zero_copy = output.contains("zero-copy");
    let has = match dev {
        "eth3" => guest.is(6, 14),
        _ => false,
    };
    match answers > 50 && (zero_copy || !has) {
        true => {
            Ok(format!("{answers} answers, {}", if zero_copy { "zero-copy" } else { "copied" }))
        }
        false => Err(summary),
    }
}
