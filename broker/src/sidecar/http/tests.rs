//! The server with real sockets: what it answers, and that nobody can take it away from others.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::*;

/// More than sockets take, and more than half of what may be on its way.
const HUGE_BYTES: usize = 20 << 20;

struct Fixed;

impl Pages for Fixed {
    fn page(&self, path: &str) -> Option<Page> {
        match path {
            "/large" => Some(Page { status: 200, content_type: "text/plain", body: "x".repeat(4 << 20) }),
            "/huge" => Some(Page { status: 200, content_type: "text/plain", body: "x".repeat(HUGE_BYTES) }),
            "/fine" => Some(Page::text(200, "fine")),
            "/sick" => Some(Page::text(503, "sick")),
            _ => None,
        }
    }
}

fn server() -> (HttpServer, SocketAddr) {
    let server = HttpServer::start(TcpListener::bind("127.0.0.1:0").unwrap(), Arc::new(Fixed)).unwrap();
    let address = server.address().unwrap();
    (server, address)
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Everything that comes back to some bytes, until the end.
fn answer(to: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = connect(to);
    // The server may have had enough before the end.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn is_served(to: SocketAddr) {
    let text = answer(to, b"GET /fine HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nfine\n"), "{text}");
}

#[test]
fn each_kind_of_request_has_its_status() {
    let (_server, address) = server();
    is_served(address);
    for (request, status) in [
        ("GET /sick HTTP/1.0\r\n\r\n", 503),
        ("GET /fine?x=1 HTTP/1.0\r\n\r\n", 200),
        ("GET /nothing HTTP/1.0\r\n\r\n", 404),
        ("POST /fine HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 405),
        ("DELETE / HTTP/1.1\r\n\r\n", 405),
        ("GET /fine HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 200),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n", 400),
        ("GET /fine HTTP/9.9\r\n\r\n", 400),
    ] {
        let text = answer(address, request.as_bytes());
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {text}");
        assert_eq!(text.contains("Allow: GET, HEAD\r\n"), status == 405);
    }
}

#[test]
fn a_target_in_absolute_form_is_its_path() {
    let (_server, address) = server();
    for (target, status) in [
        ("http://a/fine", 200),
        ("HTTP://a.example:9644/fine?x=http://b/nothing", 200),
        ("http://[::1]:9644/fine", 200),
        ("http://a/nothing", 404),
        ("http://a", 404),
        ("http://a?x=/fine", 404),
        ("http:///fine", 400),
        ("http://:9644/fine", 400),
        ("http://user@a/fine", 400),
        ("https://a/fine", 421),
        ("*", 404),
    ] {
        let text = answer(address, format!("GET {target} HTTP/1.0\r\n\r\n").as_bytes());
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {text}");
    }
}

#[test]
fn head_is_answered_as_get_is_but_without_the_body() {
    let (_server, address) = server();
    for target in ["/fine", "/sick", "/large", "/nothing", "http://a/fine", "https://a/fine", "http:///"] {
        let asked = |method| answer(address, format!("{method} {target} HTTP/1.0\r\n\r\n").as_bytes());
        let (get, head) = (asked("GET"), asked("HEAD"));
        let (before, body) = get.split_once("\r\n\r\n").unwrap();
        assert!(before.contains(&format!("\r\nContent-Length: {}\r\n", body.len())) && !body.is_empty());
        assert_eq!(head, format!("{before}\r\n\r\n"), "{target}");
    }
    // The connection stays in step.
    let both = b"HEAD /fine HTTP/1.1\r\n\r\nGET /fine HTTP/1.1\r\nConnection: close\r\n\r\n";
    let text = answer(address, both);
    assert_eq!(text.matches("\r\n\r\n").count(), 2, "{text}");
    assert_eq!(text.matches("fine\n").count(), 1, "{text}");
}

#[test]
fn large_heads_are_refused() {
    let (_server, address) = server();
    let long = format!("GET /fine HTTP/1.1\r\nX: {}\r\n\r\n", "a".repeat(1 << 20));
    let many = format!("GET /fine HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(200));
    for request in [long, many] {
        assert!(answer(address, request.as_bytes()).starts_with("HTTP/1.1 431 "));
    }
    is_served(address);
}

#[test]
fn a_connection_may_ask_again() {
    let (_server, address) = server();
    let mut stream = connect(address);
    for _ in 0..3 {
        stream.write_all(b"GET /large HTTP/1.1\r\n\r\nGET /fine HTTP/1.1\r\n\r\n").unwrap();
        let mut bytes = Vec::new();
        let mut chunk = [0; 65536];
        while !bytes.ends_with(b"\r\n\r\nfine\n") {
            let count = stream.read(&mut chunk).unwrap();
            assert!(count > 0, "the connection stays");
            bytes.extend_from_slice(&chunk[..count]);
        }
        assert!(bytes.len() > 4 << 20);
    }
}

#[test]
fn hundreds_who_say_nothing_keep_nobody_away() {
    let (server, address) = server();
    let silent: Vec<_> = (0..200).map(|_| connect(address)).collect();
    let slow: Vec<_> = (0..40)
        .map(|_| {
            let mut stream = connect(address);
            let _ = stream.write_all(b"GET /fine HTTP/1.1\r\nX-Slow: ");
            stream
        })
        .collect();
    // Whoever is not served because all places were being given up at that moment is when it comes again.
    let served = (0..50).any(|_| answer(address, b"GET /fine HTTP/1.0\r\n\r\n").contains("fine"));
    assert!(served);
    drop((silent, slow));
    drop(server);
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn who_takes_no_answers_loses_them_and_keeps_nobody_away() {
    let (_server, address) = server();
    let ask = || {
        let mut stream = connect(address);
        stream.write_all(b"GET /huge HTTP/1.0\r\n\r\n").unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        (stream, String::from_utf8_lossy(&status).into_owned())
    };
    let (mut first, status) = ask();
    assert_eq!(status, "HTTP/1.1 200");
    let others: Vec<_> = (0..6).map(|_| ask()).collect();
    let mut rest = Vec::new();
    // Closed by us, which may be a reset.
    let _ = first.read_to_end(&mut rest);
    assert!(rest.len() < HUGE_BYTES, "{} bytes", rest.len());
    assert!((0..50).any(|_| answer(address, b"GET /fine HTTP/1.0\r\n\r\n").contains("fine")));
    drop(others);
}

#[test]
fn a_head_that_does_not_come_ends_its_connection() {
    let (_server, address) = server();
    let mut stream = connect(address);
    stream.write_all(b"GET /fine HTT").unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "closed without an answer");
}
