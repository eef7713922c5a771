//! The admin endpoint of this broker: `/metrics`, `/healthz`, `/readyz`. Its socket is bound before the shards start, so
//! that a port that is taken is an error of the start; its threads live beside the shards.

use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use super::StartError;
use crate::config::broker::AdminListener;
use crate::metrics::scrape::{ScrapeError, ScrapeSeat, Scraper};
use crate::metrics::state::Progress;
use crate::metrics::text;
use crate::partition::log_dirs::table::LogDirTable;
use crate::shard::pulse::Pulses;
use crate::sidecar::http::{HttpServer, Page, Pages};

/// A shard whose ticker has not run for so long is stuck; an idle one's runs every second.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Scrapes that wait for the one at work.
const SCRAPES_MAX: usize = 2;

type ScrapeReply = SyncSender<Result<String, ScrapeError>>;

/// What the endpoint and the shards share.
pub struct Admin {
    pub(super) progress: Progress,
    pub(super) pulses: Pulses,
    /// One per shard.
    pub(super) seats: Vec<ScrapeSeat>,
    /// None where no endpoint is wished, or to be had.
    _server: Option<HttpServer>,
}

impl Admin {
    /// Starts to serve, if that is wished.
    ///
    /// # Errors
    /// The port of a listener that was asked for is taken, or its host has no address.
    pub fn start(
        listener: Option<&AdminListener>,
        shards: u16,
        log_dirs: &LogDirTable,
    ) -> Result<Self, StartError> {
        let (progress, pulses) = (Progress::new(shards), Pulses::new(shards));
        let socket = match listener {
            Some(listener) => bind(listener)?,
            None => None,
        };
        let (scraper, seats) = Scraper::new(shards, progress.clone(), log_dirs.states());
        let server = match socket {
            Some(socket) => {
                Some(serve(socket, scraper, &progress, &pulses).map_err(StartError::AdminThread)?)
            }
            None => None,
        };
        Ok(Self { progress, pulses, seats, _server: server })
    }
}

/// Binds the address; none when it is the default one and another broker has it.
fn bind(listener: &AdminListener) -> Result<Option<TcpListener>, StartError> {
    let AdminListener { host, port, is_wished } = listener;
    let bound = (host.as_str(), *port).to_socket_addrs().and_then(|addresses| {
        let addresses: Vec<_> = addresses.collect();
        TcpListener::bind(addresses.as_slice())
    });
    match bound {
        Ok(socket) => {
            if let Ok(address) = socket.local_addr() {
                tracing::info!(%address, "metrics and health at /metrics, /healthz and /readyz");
                if !address.ip().is_loopback() {
                    tracing::warn!(%address, "admin.listener is open to other machines, without authentication");
                }
            }
            Ok(Some(socket))
        }
        Err(error) if !is_wished => {
            tracing::warn!(host, port, %error, "no metrics are served: set admin.listener to another port, or to none");
            Ok(None)
        }
        Err(source) => Err(StartError::AdminListener { host: host.clone(), port: *port, source }),
    }
}

fn serve(
    socket: TcpListener,
    mut scraper: Scraper,
    progress: &Progress,
    pulses: &Pulses,
) -> io::Result<HttpServer> {
    let (scrapes, asked) = sync_channel::<ScrapeReply>(SCRAPES_MAX);
    let scraping = std::thread::Builder::new().name("metrics".to_owned());
    // Ends with the last sender: the pages.
    scraping.spawn(move || {
        while let Ok(reply) = asked.recv() {
            // Whoever asked may have gone.
            let _ = reply.send(scraper.scrape());
        }
    })?;
    let pages = AdminPages { progress: progress.clone(), pulses: pulses.clone(), scrapes };
    HttpServer::start(socket, Arc::new(pages))
}

/// The pages.
struct AdminPages {
    progress: Progress,
    pulses: Pulses,
    scrapes: SyncSender<ScrapeReply>,
}

impl Pages for AdminPages {
    fn page(&self, path: &str) -> Option<Page> {
        match path {
            "/metrics" => Some(self.metrics()),
            "/healthz" => Some(self.health()),
            "/readyz" => Some(self.readiness()),
            _ => None,
        }
    }
}

impl AdminPages {
    fn metrics(&self) -> Page {
        let (reply, answer) = sync_channel(1);
        if self.scrapes.try_send(reply).is_err() {
            return Page::text(503, "other scrapes are at work");
        }
        match answer.recv() {
            Ok(Ok(body)) => Page { status: 200, content_type: text::CONTENT_TYPE, body },
            Ok(Err(error)) => Page::text(503, &error.to_string()),
            Err(_) => Page::text(503, "stopping"),
        }
    }

    /// Whether every shard runs.
    fn health(&self) -> Page {
        match self.pulses.silent(SILENCE_MAX) {
            None => Page::text(200, "ok"),
            Some((shard, since)) => {
                Page::text(503, &format!("shard {} has not run for {} ms", shard.get(), since.as_millis()))
            }
        }
    }

    /// Whether clients should come.
    fn readiness(&self) -> Page {
        match self.progress.ready() {
            Ok(()) => Page::text(200, "ok"),
            Err(reason) => Page::text(503, &reason.to_string()),
        }
    }
}
