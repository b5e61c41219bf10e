//! The commands of README.md do what the README says; its Rust program is built by `outside.rs`, its Python by `test_docs.py`.

use crate::stand_in::StandIn;
use crate::support::{Folder, MODEL, Ran, ran, sluice};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};

const README: &str = include_str!("../../../../README.md");

/// The commands of the blocks that are marked as `language`.
fn commands(language: &str) -> Vec<&'static str> {
    let opening = format!("```{language}\n");
    let blocks = README.split(opening.as_str()).skip(1);
    let blocks = blocks.filter_map(|text| text.split("\n```").next());
    blocks.flat_map(str::lines).collect()
}

/// The words of a command line, some of which are in double quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (i, part) in line.split('"').enumerate() {
        if i % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

fn finished(folder: &Folder, line: &str) -> Ran {
    let words = words(line);
    assert_eq!(words[0], "sluice", "{line}");
    let mut command = sluice();
    command.current_dir(&folder.0).args(&words[1..]);
    let ran = ran(command.output().expect("the program starts"));
    assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
    ran
}

fn folder() -> Folder {
    let folder = Folder::new("readme");
    std::fs::copy(MODEL, folder.path("model.gguf")).expect("the model can be copied");
    folder
}

#[test]
fn the_story_in_the_readme_is_what_the_program_prints() {
    let lines = commands("console");
    let (command, expected) = lines.split_first().expect("the README has a story");
    let command = command.strip_prefix("$ ").expect("the command comes first");
    let ran = finished(&folder(), command);
    let words =
        |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
    assert_eq!(words(&ran.stdout), words(&expected.join("\n")));
}

#[test]
fn its_commands_end_well() {
    let folder = folder();
    let lines = commands("sh");
    let ours = lines.iter().filter(|line| line.starts_with("sluice "));
    let (servers, others): (Vec<_>, Vec<_>) = ours.partition(|line| line.contains(" serve "));
    assert_eq!((servers.len(), others.len()), (1, 2), "{lines:?}");
    for line in others {
        assert!(!finished(&folder, line).stdout.is_empty() || line.contains(" chat "));
    }
    let asks = lines.iter().find(|line| line.starts_with("curl "));
    let server = Server::start(&folder, servers[0]);
    let reply = server.answer(asks.expect("the README asks the server"));
    assert!(reply.contains("\"role\":\"assistant\""), "{reply}");
}

#[test]
fn a_model_of_the_hub_runs_as_written() {
    let (hub, cache) = (StandIn::start(), Folder::new("readme-hub"));
    hub.add("m-Q4_K_M.gguf", &std::fs::read(MODEL).expect("it is there"));
    let line = README
        .split('`')
        .find(|text| text.contains("-hf USER/REPO"));
    let line = line.expect("the README has the command");
    let words = words(&line.replace("USER/REPO", "u/m"));
    let mut command = sluice();
    command.args(&words[1..]).args(["-n", "8"]);
    command
        .env("HF_ENDPOINT", hub.endpoint())
        .env_remove("HF_TOKEN");
    command
        .env("HF_HUB_CACHE", &cache.0)
        .env_remove("LLAMA_CACHE");
    let ran = ran(command.output().expect("the program starts"));
    assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
    assert!(!ran.stdout.is_empty(), "{ran:?}");
}

/// The server of the README, on a free port.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(folder: &Folder, line: &str) -> Self {
        let words = words(&line.replace("--port 8080", "--port 0"));
        let mut command = sluice();
        command.current_dir(&folder.0).args(&words[1..]);
        let mut child = command
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let mut lines = lines.map_while(Result::ok);
        let line = lines.find(|line| line.contains("http://"));
        let line = line.expect("the server says where it listens");
        let address = line.split("http://").nth(1).expect("just found");
        let address = address.split_whitespace().next().expect("an address");
        // Whatever else it logs is read, so that it never waits for this test.
        let address = address.to_owned();
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }

    /// The reply to a command `curl URL -d 'BODY'`.
    fn answer(&self, curl: &str) -> String {
        let parts: Vec<_> = curl.split('\'').collect();
        let &[before, body, ""] = &parts[..] else {
            panic!("{curl}");
        };
        let path = before.split_whitespace().nth(1).expect("a URL");
        let path = path.split("8080").nth(1).expect("the port of the README");
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("it answers");
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        reply
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _ended = self.child.wait();
    }
}
