//! Published figures of the five proposals, as typed rows.
//!
//! The tables are the files in `crates/reproduce/tables`, embedded; they contain what the documents print and
//! nothing derived from it. A row type has the columns of its table, with units in the names. The experiments know
//! what the figures mean and how they were taken.

use super::sheet::{self, Field, TableError, TableRow, table_row};

/// One published table.
#[derive(Debug, Clone, Copy)]
struct Table {
    name: &'static str,
    text: &'static str,
}

macro_rules! embedded {
    ($file:literal) => {
        Table { name: $file, text: include_str!(concat!("../tables/", $file)) }
    };
}

impl Table {
    fn rows<R: TableRow>(self) -> Result<Vec<R>, TableError> {
        sheet::rows(self.name, self.text)
    }
}

table_row! {
    /// 2007, hold in polled mode: flood ping, per second.
    pub HoldRow {
        /// `baseline_napi`, or hold by jiffies.
        mode: String,
        /// Echo requests sent and answered.
        packets_sent_received: f64,
        /// CPU load in per cent.
        cpu_load_pct: f64,
        /// Interrupts of the network device.
        netdev_interrupts: f64,
    }
}

table_row! {
    /// 2018, network softirqs to ksoftirqd: a flooded UDP sink.
    pub KsoftirqdRow {
        /// Packets per second sent by the generator.
        source_pps: f64,
        /// Packets per second received by the sink, on the kernel of that time.
        dest_pps_master_4_15_rc4: f64,
        /// Packets per second received with the proposal as posted.
        dest_pps_rfc: f64,
    }
}

table_row! {
    /// 2020, kthread polling: 1000 flows of request and response over TCP.
    pub TcpRrRow {
        /// `softirq`, `kthread` or `workq`.
        mode: String,
        /// Size of a request, as the document writes it.
        req_size: String,
        /// Size of a response.
        resp_size: String,
        /// Requests per second.
        qps: f64,
        /// Median latency of a request, as published.
        p50_us: f64,
        /// 90th percentile of the latency.
        p90_us: f64,
        /// 99th percentile of the latency.
        p99_us: f64,
        /// 99.9th percentile of the latency.
        p99_9_us: f64,
    }
}

table_row! {
    /// 2020, kthread polling: remote SSD operations at a fixed rate.
    pub SsdRow {
        /// `softirq`, `kthread` or `workq`.
        mode: String,
        /// Size of an operation, as the document writes it.
        op_size: String,
        /// Operations per second: fixed, not measured.
        qps: f64,
        /// Median latency of a request, as published.
        p50_us: f64,
        /// 95th percentile of the latency.
        p95_us: f64,
        /// 99th percentile of the latency.
        p99_us: f64,
        /// 99.9th percentile of the latency.
        p99_9_us: f64,
    }
}

/// The rate requested of the 2024 generator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TargetQps {
    /// A number of requests per second.
    PerS(f64),
    /// As many as the server can answer.
    Max,
}

impl Field for TargetQps {
    const WANTED: &'static str = "a rate above 0, or MAX";

    fn read(text: &str) -> Option<Self> {
        if text == "MAX" {
            return Some(TargetQps::Max);
        }
        f64::read(text).filter(|rate| *rate > 0.0).map(TargetQps::PerS)
    }
}

table_row! {
    /// 2024, interrupt suspension: memcached under mutilate.
    pub IrqSuspendRow {
        /// The policy, by its name in the document.
        config: String,
        /// The requested rate.
        target_qps: TargetQps,
        /// Requests answered per second.
        achieved_qps_mean: f64,
        /// Mean latency: the median of the runs' means.
        avg_lat_us_median: f64,
        /// 95th percentile, interpolated in bins about 10 % wide.
        p95_lat_us_median: f64,
        /// 99th percentile, interpolated in the same way.
        p99_lat_us_median: f64,
        /// CPU utilization of the server in per cent.
        cpu_util_pct_mean: f64,
    }
}

table_row! {
    /// 2025, threaded busy poll: `xsk_rr`. Despite their names, the four figures are means of the fastest samples:
    /// see [`napkin_measure::PublishedEstimator`].
    pub BusyPollRow {
        /// Packets per second.
        rate_pkt_per_s: f64,
        /// The emulated application's processing time per packet.
        app_delay_us: f64,
        /// The polling configuration.
        config: String,
        /// The document's "p5".
        p5_ns: f64,
        /// The document's "p50".
        p50_ns: f64,
        /// The document's "p95".
        p95_ns: f64,
        /// The document's "p99".
        p99_ns: f64,
    }
}

table_row! {
    /// 2025: durations of `recvfrom`, called in a loop by a separate thread.
    pub RecvfromRow {
        /// Shortest duration of the bucket.
        bucket_lo_ns_incl: u64,
        /// Shortest duration above the bucket.
        bucket_hi_ns_excl: u64,
        /// Calls in the bucket.
        count: u64,
        /// Their share of all calls.
        fraction_of_all: f64,
    }
}

macro_rules! published {
    ($($(#[$doc:meta])* $name:ident: $row:ty = $file:literal;)*) => { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// Only if the embedded file is damaged.
        pub fn $name() -> Result<Vec<$row>, TableError> {
            embedded!($file).rows()
        }
    )* };
}

published! {
    /// The two rows of 2007.
    hold: HoldRow = "hold_flood_ping.csv";
    /// The 24 rates of 2018.
    ksoftirqd: KsoftirqdRow = "ksoftirqd_udp_sink.csv";
    /// The nine rows of 2020's first table.
    tcp_rr: TcpRrRow = "kthread_tcp_rr.csv";
    /// The nine rows of 2020's second table.
    ssd: SsdRow = "kthread_ssd.csv";
    /// The 66 rows of 2024: 11 policies at 6 rates.
    irq_suspend: IrqSuspendRow = "irqsuspend_memcached.csv";
    /// The 20 rows of 2025: 4 configurations at 5 loads.
    busy_poll: BusyPollRow = "busypoll_xsk_rr.csv";
    /// 2025's histogram of the durations of `recvfrom`.
    recvfrom: RecvfromRow = "xsk_recvfrom_hist.csv";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_read_whole() {
        assert_eq!(hold().unwrap().len(), 2);
        assert_eq!(ksoftirqd().unwrap().len(), 24);
        assert_eq!(tcp_rr().unwrap().len(), 9);
        assert_eq!(ssd().unwrap().len(), 9);
        assert_eq!(irq_suspend().unwrap().len(), 66);
        assert_eq!(busy_poll().unwrap().len(), 20);
        assert_eq!(recvfrom().unwrap().len(), 6);
    }

    #[test]
    fn a_row_bears_the_document_s_figures() {
        let rows = irq_suspend().unwrap();
        let row = rows.iter().find(|r| r.config == "suspend20" && r.target_qps == TargetQps::Max);
        let row = row.unwrap();
        assert_eq!((row.achieved_qps_mean, row.p99_lat_us_median), (1_150_835.0, 4_373.0));
        assert_eq!(hold().unwrap()[0].netdev_interrupts, 12_400.0);
        let rows = ksoftirqd().unwrap();
        assert_eq!((rows[8].source_pps, rows[8].dest_pps_rfc), (14_000.0, 13_942.96));
    }

    #[test]
    fn every_policy_of_2024_has_the_same_six_rates() {
        let rows = irq_suspend().unwrap();
        for policy in rows.chunks(6) {
            let rates: Vec<_> = policy.iter().map(|r| r.target_qps).collect();
            let want: Vec<_> = [200e3, 400e3, 600e3, 800e3, 1e6].map(TargetQps::PerS).into();
            assert_eq!((&rates[..5], rates[5]), (&want[..], TargetQps::Max));
            assert!(policy.iter().all(|r| r.config == policy[0].config));
        }
    }

    #[test]
    fn a_rate_is_a_number_above_zero_or_max() {
        assert_eq!(TargetQps::read("MAX"), Some(TargetQps::Max));
        assert_eq!(TargetQps::read("5"), Some(TargetQps::PerS(5.0)));
        for wrong in ["0", "-1", "max", "", "inf"] {
            assert_eq!(TargetQps::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_histogram_s_shares_are_of_its_calls() {
        let rows = recvfrom().unwrap();
        let calls: u64 = rows.iter().map(|r| r.count).sum();
        for row in &rows {
            let share = row.count as f64 / calls as f64;
            assert!((share - row.fraction_of_all).abs() < 1e-4, "{row:?}: {share}");
            assert_eq!(row.bucket_hi_ns_excl, 2 * row.bucket_lo_ns_incl);
        }
    }
}
