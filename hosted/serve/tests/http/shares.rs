//! Strangers on one server: each client has its share, whatever others do.

use crate::client::{Reply, Running, options, receive, until};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

/// Sends a request from a loopback address of its own, with a small receive buffer.
fn post_from(server: &Running, address: &str, body: &Value) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket
            .bind(format!("{address}:0").parse().unwrap())
            .unwrap();
        let stream = socket.connect(server.address().parse().unwrap()).await;
        stream.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    let timeout = Some(Duration::from_secs(120));
    stream.set_read_timeout(timeout).unwrap();
    let mut stream = stream;
    let (body, length) = (body.to_string(), body.to_string().len());
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length:";
    write!(stream, "{head} {length}\r\n\r\n{body}").unwrap();
    stream
}

fn small(seed: u64) -> Value {
    json!({"prompt": "Once", "max_tokens": 4, "seed": seed})
}

/// The answer, which has to come within `limit`.
fn quick(stream: TcpStream, limit: Duration) -> Reply {
    let begun = Instant::now();
    let reply = receive(stream);
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert!(begun.elapsed() < limit, "after {:?}", begun.elapsed());
    reply
}

fn wait_until_running(server: &Running, n: usize) {
    let begun = Instant::now();
    let n_busy = || {
        let slots = server.get("/slots").json();
        let slots = slots.as_array().cloned().unwrap_or_default();
        let busy = slots.iter().filter(|slot| slot["is_processing"] == true);
        busy.count()
    };
    while n_busy() != n {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{} run",
            n_busy()
        );
        std::thread::yield_now();
    }
}

fn n_waiting(server: &Running) -> f64 {
    let metrics = server.get("/metrics").body;
    let found = metrics.lines().find_map(|line| {
        let line = line.strip_prefix("sluice:num_requests_waiting{")?;
        line.rsplit(' ').next()?.parse().ok()
    });
    found.unwrap()
}

#[test]
fn a_flooding_address_does_not_delay_another() {
    let mut options = options();
    options.models.limits.n_ctx = 4096;
    options.models.limits.n_seq = 2;
    let server = Running::start(options);
    let long = json!({"prompt": "Once", "max_tokens": 1000, "ignore_eos": true, "stream": true});
    let flood: Vec<_> = (0..20)
        .map(|_| post_from(&server, "127.0.0.1", &long))
        .collect();
    wait_until_running(&server, 2);
    let begun = Instant::now();
    for seed in 0..3 {
        quick(
            post_from(&server, "127.0.0.2", &small(seed)),
            Duration::from_secs(10),
        );
    }
    let polite = begun.elapsed();
    assert!(n_waiting(&server) >= 10.0, "the flood was over");
    // The flood's own next request comes after all of it.
    let last = post_from(&server, "127.0.0.1", &small(9));
    let begun = Instant::now();
    drop(flood);
    quick(last, Duration::from_secs(60));
    assert!(
        polite < Duration::from_secs(20),
        "{polite:?}, then {:?}",
        begun.elapsed()
    );
}

#[test]
fn stopped_readers_free_their_slots_and_go_on_when_they_read() {
    let mut options = options();
    options.models.limits.n_ctx = 4096;
    options.models.limits.n_seq = 2;
    options.engine.reader_buffer = 64 << 10;
    let server = Running::start(options);
    let long = json!({"prompt": "Once", "max_tokens": 1200, "ignore_eos": true, "stream": true,
        "logprobs": 20, "temperature": 0});
    let mut stopped: Vec<_> = (0..2)
        .map(|_| post_from(&server, "127.0.0.1", &long))
        .collect();
    // Their heads are read, and nothing more.
    for stream in &mut stopped {
        let mut start = [0; 12];
        stream.read_exact(&mut start).unwrap();
        assert_eq!(&start, b"HTTP/1.1 200");
    }
    wait_until_running(&server, 0);
    quick(
        post_from(&server, "127.0.0.1", &small(1)),
        Duration::from_secs(10),
    );
    let texts = stopped.into_iter().map(|mut stream| {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("data: [DONE]"), "{}", rest.len());
        let lines = rest.lines().filter_map(|line| line.strip_prefix("data: {"));
        lines.count()
    });
    let lengths: Vec<_> = texts.collect();
    assert!(
        lengths[0] >= 1200 && lengths[0] == lengths[1],
        "{lengths:?}"
    );
}

#[test]
fn a_stopped_reader_ends_by_the_timeout() {
    let mut options = options();
    options.models.limits.n_ctx = 4096;
    options.engine.reader_buffer = 64 << 10;
    options.http.stall_timeout = Duration::from_secs(1);
    let server = Running::start(options);
    let long = json!({"prompt": "Once", "max_tokens": 4000, "ignore_eos": true, "stream": true,
        "logprobs": 20});
    let stopped = post_from(&server, "127.0.0.1", &long);
    let begun = Instant::now();
    while !server
        .get("/metrics")
        .body
        .contains("finished_reason=\"abort\"} 1")
    {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is kept");
        std::thread::yield_now();
    }
    drop(stopped);
}

#[test]
fn a_trusted_proxy_names_its_clients() {
    let mut options = options();
    options.models.limits.n_ctx = 4096;
    options.models.limits.n_seq = 1;
    options.engine.max_queue = 1;
    options.http.trusted_proxies = "127.0.0.1".parse().unwrap();
    let server = Running::start(options);
    let post = |client: &str, body: &Value| {
        let head = format!("POST /v1/completions HTTP/1.1\r\nx-forwarded-for: {client}");
        server.send(&head, &body.to_string())
    };
    let long = json!({"prompt": "Once", "max_tokens": 3000, "ignore_eos": true, "stream": true});
    let flood = post("10.0.0.1", &long);
    wait_until_running(&server, 1);
    let queued = post("10.0.0.1", &long);
    until("none waits", || n_waiting(&server) >= 1.0);
    let refused = receive(post("10.0.0.1", &small(1)));
    assert_eq!(refused.status, 429, "{}", refused.body);
    let other = post("10.0.0.2", &small(2));
    drop((flood, queued));
    quick(other, Duration::from_secs(60));
}

fn ask(model: &str, n: usize) -> Value {
    json!({"model": model, "prompt": "Once", "max_tokens": n, "ignore_eos": true, "seed": 3})
}

#[test]
fn a_busy_model_does_not_keep_others_out() {
    let server = Running::start(options());
    until("not healthy", || server.get("/health").status == 200);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let reply = server.post("/v1/completions", &ask("tale", 30));
                    assert_eq!(reply.status, 200, "{}", reply.body);
                }
            });
        }
        wait_until_running(&server, 3);
        for _ in 0..3 {
            let begun = Instant::now();
            let reply = server.post("/v1/completions", &ask("other", 3));
            is_over.store(reply.status != 200, Ordering::Relaxed);
            assert_eq!(reply.status, 200, "{}", reply.body);
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "{:?}",
                begun.elapsed()
            );
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn texts_that_wait_for_their_models_turn_are_finished_at_the_end() {
    let mut options = options();
    options.models.limits.n_ctx = 4096;
    options.models.turn = Duration::from_millis(200);
    options.http.patience = Duration::from_secs(100);
    let is_parked = Arc::new(AtomicBool::new(false));
    let parked = Arc::clone(&is_parked);
    options.log = Arc::new(move |line: &str| {
        let is_so = line.contains("\"tale\" unloaded, its texts wait");
        parked.fetch_or(is_so, Ordering::Relaxed);
    });
    let mut server = Running::start(options);
    let send = |server: &Running, model: &str, n: usize| {
        let text = ask(model, n).to_string();
        server.send("POST /v1/completions HTTP/1.1", &text)
    };
    // Together they take longer than a turn, however fast the machine is.
    let first = [1500, 1499, 1400].map(|n| (send(&server, "tale", n), n));
    wait_until_running(&server, first.len());
    let second = send(&server, "other", 1000);
    until("none was parked", || is_parked.load(Ordering::Relaxed));
    server.stop();
    for (stream, n) in first.into_iter().chain([(second, 1000)]) {
        let reply = receive(stream);
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(reply.json()["usage"]["completion_tokens"], n);
    }
}

#[test]
fn texts_that_outlast_their_models_turn_go_on_at_its_next() {
    let mut options = options();
    options.models.limits.n_ctx = 4096;
    options.models.turn = Duration::from_millis(200);
    let server = Running::start(options);
    let alone = server.post("/v1/completions", &ask("tale", 1500)).json();
    let begun = Instant::now();
    let ahead = server.post("/v1/completions", &ask("tale", 1500));
    let whole = begun.elapsed();
    assert_eq!(ahead.json()["choices"], alone["choices"]);
    let long = [1500, 1499, 1400].map(|n| {
        let text = ask("tale", n).to_string();
        server.send("POST /v1/completions HTTP/1.1", &text)
    });
    wait_until_running(&server, 3);
    for _ in 0..2 {
        let begun = Instant::now();
        let other = server.post("/v1/completions", &ask("other", 3));
        assert_eq!(other.status, 200, "{}", other.body);
        assert!(begun.elapsed() < whole + Duration::from_secs(10));
    }
    let reply = long.map(receive);
    for (reply, n) in reply.iter().zip([1500, 1499, 1400]) {
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(reply.json()["usage"]["completion_tokens"], n);
    }
    assert_eq!(reply[0].json()["choices"], alone["choices"]);
    let metrics = server.get("/metrics").body;
    let parked = metrics.lines().find_map(|line| {
        let line = line.strip_prefix("sluice:num_preemptions_total{model_name=\"tale\"")?;
        line.rsplit(' ').next()?.parse::<f64>().ok()
    });
    assert!(parked >= Some(1.0), "none was parked: {parked:?}");
}
