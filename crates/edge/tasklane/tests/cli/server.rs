//! A server that plays a script: one answer for each request, whatever it asks. It shows how the command line
//! handles answers; the tests of the real server cover its answers.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

/// Plays the answers one after the other; gives back the requests, heads and bodies.
pub(crate) struct Script {
    pub(crate) url: String,
    played: JoinHandle<Vec<String>>,
}

impl Script {
    pub(crate) fn new(answers: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let played = std::thread::spawn(move || {
            // Held until the next one is answered: a stream stays open until something else happens.
            let mut _held = None;
            answers
                .iter()
                .map(|answer| {
                    let (mut socket, _) = listener.accept().unwrap();
                    let mut request = Vec::new();
                    let mut part = [0; 4096];
                    while !is_whole(&request) {
                        let read = socket.read(&mut part).unwrap();
                        request.extend_from_slice(&part[..read]);
                    }
                    socket.write_all(answer.as_bytes()).unwrap();
                    _held = Some(socket);
                    String::from_utf8(request).unwrap()
                })
                .collect()
        });
        Self { url, played }
    }

    pub(crate) fn requests(self) -> Vec<String> {
        self.played.join().unwrap()
    }
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    body.len() >= length.unwrap_or(0)
}

pub(crate) fn json(status: u16, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
}

pub(crate) fn events(text: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{text}")
}
