use super::*;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ThreadId};

#[test]
fn every_rank_runs_once_per_job() {
    for (n, n_jobs) in [(1, 500), (2, 500), (3, 500), (7, 500), (WORKERS_MAX, 10)] {
        let mut workers = Workers::new(n, &Cores::detect()).unwrap();
        assert_eq!(workers.count(), n);
        let calls: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..n_jobs {
            workers
                .run(|rank| {
                    calls[rank].fetch_add(1, Ordering::Relaxed);
                })
                .unwrap();
        }
        assert!(
            calls
                .iter()
                .all(|count| count.load(Ordering::Relaxed) == n_jobs)
        );
    }
}

#[test]
fn ranks_keep_their_threads_and_rank_0_is_the_caller() {
    let mut workers = Workers::new(3, &Cores::detect()).unwrap();
    let mut who = || -> Vec<ThreadId> {
        let ids = Mutex::new(vec![None; 3]);
        let note = |rank: usize| ids.lock().unwrap()[rank] = Some(thread::current().id());
        workers.run(note).unwrap();
        ids.into_inner().unwrap().into_iter().flatten().collect()
    };
    let first = who();
    assert_eq!(first, who());
    assert_eq!(first[0], thread::current().id());
    assert_ne!(first[1], first[2]);
}

#[test]
fn what_a_job_writes_is_visible_afterwards() {
    let mut workers = Workers::new(4, &Cores::detect()).unwrap();
    let sums: Vec<Mutex<u64>> = (0..4).map(|_| Mutex::new(0)).collect();
    for i in 0..100u64 {
        workers
            .run(|rank| *sums[rank].lock().unwrap() += i)
            .unwrap();
    }
    assert!(sums.iter().all(|sum| *sum.lock().unwrap() == 4950));
}

#[test]
fn a_panic_in_any_rank_is_an_error_and_the_team_lives_on() {
    let mut workers = Workers::new(3, &Cores::detect()).unwrap();
    for bad in 0..3 {
        let finished = AtomicUsize::new(0);
        let error = workers.run(|rank| {
            assert!(rank != bad, "rank {rank} was told to");
            finished.fetch_add(1, Ordering::Relaxed);
        });
        let message = format!("worker {bad} failed: rank {bad} was told to");
        assert_eq!(error.unwrap_err().to_string(), message);
        assert_eq!(finished.load(Ordering::Relaxed), 2);
        workers.run(|_| {}).unwrap();
    }
}

#[test]
fn the_callers_affinity_stays() {
    let before = rustix::thread::sched_getaffinity(None).unwrap();
    let mut workers = Workers::new(2, &Cores::detect()).unwrap();
    workers.run(|_| {}).unwrap();
    assert!(rustix::thread::sched_getaffinity(None).unwrap() == before);
}

#[test]
fn speeds_are_measured_and_shared() {
    let mut workers = Workers::new(2, &Cores::detect()).unwrap();
    assert_eq!(workers.shares(), None);
    let table = crate::host::isa::kernel_table(None).unwrap();
    let speeds = workers.share_by_speed(table).unwrap();
    assert_eq!(speeds.len(), 2);
    assert!(speeds.iter().all(|&speed| speed > 0.0), "{speeds:?}");
    assert!(speeds.contains(&1.0), "{speeds:?}");
    assert_eq!(workers.shares().unwrap().n_ranks(), 2);
}

#[test]
fn a_payload_that_panics_as_it_goes_stops_nobody() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::panic_any(Self);
        }
    }
    let mut workers = Workers::new(3, &Cores::detect()).unwrap();
    for bad in 0..3 {
        let thrown = workers.run(|rank| {
            if rank == bad {
                std::panic::panic_any(Bomb);
            }
        });
        let message = "a panic without a message".to_owned();
        assert_eq!(thrown, Err(WorkerPanicked { rank: bad, message }));
    }
    assert_eq!(workers.run(|_| {}), Ok(()));
}
