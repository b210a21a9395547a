//! A guest whose cards are served by napkin over vhost-user: it pings, fetches a file, and does both again after
//! napkin was killed and restarted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use napkin_testing::{needs, needs_program, test};

use super::cases::Outcome;
use super::guest::Guest;
use super::vm::{Cards, VhostUser, Vm};
use super::{attempt, case_wanted, wanted};

/// Length of the file, in bytes.
const LENGTH: usize = 100 << 20;

/// A card of the guest, and the napkin that serves it.
struct Card {
    /// The number N of ethN and 10.9.1N.0/24.
    number: usize,
    packed: bool,
    place: PathBuf,
    napkin: Option<Child>,
}

impl Card {
    fn socket(&self) -> PathBuf {
        self.place.join(format!("card{}", self.number))
    }

    /// The file that is served; each backend locks its own.
    fn file(&self) -> PathBuf {
        self.place.join(format!("file{}", self.number))
    }

    /// Starts its backend, which serves the file to the guest over TCP.
    fn serve(&mut self) {
        let log = self.place.join(format!("log{}", self.number));
        let mut napkin = Command::new(env!("CARGO_BIN_EXE_napkin"))
            .args(["serve", "nbd", "--policy", "suspend20", "--read-only"])
            .args(["--device", &format!("vhost:{}", self.socket().display())])
            .args(["--address", &format!("10.9.1{}.1/24", self.number)])
            .arg("--file")
            .arg(self.file())
            .stderr(fs::File::create(&log).expect("a file"))
            .spawn()
            .expect("it is built");
        while !self.socket().exists() {
            let ended = napkin.try_wait().expect("a child");
            let log_text = || fs::read_to_string(&log).unwrap_or_default();
            assert!(ended.is_none(), "{ended:?}: {}", log_text());
            thread::sleep(Duration::from_millis(10));
        }
        self.napkin = Some(napkin);
    }

    fn kill(&mut self) {
        if let Some(mut napkin) = self.napkin.take() {
            // SIGKILL: the guest is not notified.
            let _ = napkin.kill();
            let _ = napkin.wait();
        }
    }

    /// Pings the card's backend and fetches its file. Returns the checksum.
    fn is_there(&self, guest: &mut Guest) -> Outcome {
        let peer = format!("10.9.1{}.1", self.number);
        guest.does(&format!("ping -c 3 -i 0.2 -w 30 {peer}"))?;
        guest.does(&format!("nbdcopy nbd://{peer} - | sha256sum"))
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A directory, removed on drop.
struct TempDir(PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Writes pseudorandom bytes.
fn write(file: &Path) {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let bytes: Vec<u8> = (0..LENGTH / 8)
        .flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        })
        .collect();
    fs::write(file, bytes).expect("written");
}

fn fetched_twice(guest: &mut Guest, cards: &mut [Card], sum: &str) -> Outcome {
    for card in cards {
        let (number, ring) = (card.number, if card.packed { "packed" } else { "split" });
        guest.does(&format!(
            "ip addr replace 10.9.1{number}.2/24 dev eth{number} && ip link set eth{number} up"
        ))?;
        // Bit 34: VIRTIO_F_RING_PACKED.
        let bits = format!("cut -c 35 /sys/class/net/eth{number}/device/features");
        assert_eq!(guest.does(&bits)?, u8::from(card.packed).to_string(), "{ring}");
        for life in ["first", "second"] {
            let answer = card.is_there(guest)?;
            assert!(answer.starts_with(sum), "{ring}, {life} backend: {answer}, not {sum}");
            if life == "first" {
                card.kill();
                card.serve();
            }
        }
    }
    Ok("100 MiB came with the right sum, and again after the backend was killed; split and packed"
        .into())
}

#[test]
fn vhost_user_cards_outlive_their_backend_on_debian_7_2() {
    wanted("7.2");
    needs(case_wanted("vhost"), "NAPKIN_CASE with vhost, or none");
    needs_program("nbdcopy");
    let name = format!("napkin-vm-vhost-{}", std::process::id());
    let place = TempDir(std::env::temp_dir().join(name));
    fs::create_dir_all(&place.0).expect("a place");
    let mut cards: Vec<Card> = [false, true]
        .into_iter()
        .enumerate()
        .map(|(number, packed)| Card { number, packed, place: place.0.clone(), napkin: None })
        .collect();
    cards.iter().for_each(|card| write(&card.file()));
    let output = Command::new("sha256sum").arg(cards[0].file()).output().expect("coreutils");
    let sum = String::from_utf8_lossy(&output.stdout)[..64].to_owned();
    cards.iter_mut().for_each(Card::serve);
    let nics =
        cards.iter().map(|it| VhostUser { socket: it.socket(), packed: it.packed }).collect();
    let nics = Cards::VhostUser(nics);
    let boot = || Guest::of(Vm::boot_with("7.2", &nics));
    let outcome = attempt(&mut boot(), "7.2", boot, |guest| fetched_twice(guest, &mut cards, &sum));
    println!("7.2 | vhost-user | vhost | {}", outcome.expect("as it says"));
}
