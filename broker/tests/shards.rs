//! Shards as threads: round trips between them, real sockets, and a stop in phases.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    reason = "helpers of tests, outside #[test] functions"
)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use broker::shard::ask::{Reply, Seat, Shards, seats};
use broker::shard::glommio::GlommioShard;
use broker::shard::start::{Cores, Layout, StartError, StartOptions, prepare, start};
use broker::shard::stop::{Stopper, Stopping};
use broker::shard::{Class, Conn, NEVER, Service, ShardId, ShardRuntime};
use bytes::{Bytes, BytesMut};
use futures_util::future::{Either, join_all};
use smallvec::smallvec;
use storage::io::{DirOp, File, Open, Runtime, Span};

/// Answers each number with its double.
#[derive(Clone)]
struct Double;

impl Service for Double {
    type Ask = u64;
    type Answer = u64;
    fn accept(&self, _from: ShardId, ask: u64, reply: Reply<u64>) {
        reply.send(ask * 2);
    }
}

fn run<P: Send + 'static, F: Future<Output = Result<(), String>> + 'static>(
    cores: Cores,
    parts: impl FnOnce(u16) -> Vec<P>,
    body: impl Fn(GlommioShard, P, Stopping) -> F + Clone + Send + 'static,
) -> Result<(), StartError<String>> {
    prepare()?;
    let layout = Layout::new(&cores)?;
    let stopper = Stopper::new(layout.shards());
    start(&StartOptions::default(), &layout, &stopper, parts(layout.shards()), body)
}

/// Time that this thread ran or waited for a core. Zero where the kernel does not count it.
fn wanted_cpu() -> Duration {
    let counted = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = counted.split_whitespace().take(2).filter_map(|number| number.parse::<u64>().ok());
    Duration::from_nanos(nanos.sum())
}

/// glommio.md b1: a shard must not park with work to do. Each shard asks every other, one ask at a time, so that both
/// park between any two; stuck, it would take the ticker each time. Then no shard runs and none waits for a core: it is
/// this time that is judged, so that a machine that is busy elsewhere changes nothing. After `budget` on the clock what
/// was done by then is judged.
fn soak(shards: u16, round_trips: u64, budget: Duration) {
    let parts = |count| seats::<GlommioShard, Double>(count, Class::Client, 8);
    let (made, wanted, took) = (Counter::default(), Counter::default(), Counter::default());
    let hurry = Arc::new(AtomicBool::new(false));
    let shared = (made.clone(), wanted.clone(), took.clone(), hurry);
    run(Cores::Count(shards), parts, move |shard, seat: Seat<GlommioShard, Double>, stopping| {
        let (made, wanted, took, hurry) = shared.clone();
        async move {
            let all = Shards::new(&shard, Double, seat);
            let (began, wanted_before) = (shard.now(), wanted_cpu());
            for number in 0..round_trips {
                let others = (0..shard.shard_count()).map(ShardId::new);
                let answers = others.map(|to| all.ask(to, NEVER, number));
                for answer in join_all(answers).await {
                    assert_eq!(answer, Ok(number * 2));
                }
                made.fetch_add(1, Ordering::Relaxed);
                let so_far = Duration::from_nanos(shard.now().nanos_since(began));
                if so_far > budget || hurry.load(Ordering::Relaxed) {
                    hurry.store(true, Ordering::Relaxed);
                    break;
                }
            }
            took.fetch_max(shard.now().nanos_since(began), Ordering::Relaxed);
            let more = u64::try_from((wanted_cpu() - wanted_before).as_nanos()).unwrap();
            wanted.fetch_add(more, Ordering::Relaxed);
            stopping.meet(&shard).await;
            Ok(())
        }
    })
    .unwrap();
    let [made, wanted, took] = [made, wanted, took].map(|counter| counter.load(Ordering::Relaxed));
    let parked = Duration::from_nanos(took.saturating_sub(wanted));
    // A stuck wake takes the 20 ms of a ticker, a good one 0.05 ms.
    let allowed = Duration::from_micros(2500) * u32::try_from(made / u64::from(shards)).unwrap();
    assert!(parked <= allowed, "all were parked for {parked:?} of {made} round trips");
}

type Counter = Arc<AtomicU64>;

#[test]
fn two_shards_make_thousands_of_round_trips_without_a_stuck_wake() {
    soak(2, 8_000, Duration::from_secs(20));
}

#[test]
fn five_shards_share_two_cores() {
    soak(5, 1_000, Duration::from_secs(20));
}

#[test]
fn a_failing_shard_stops_the_others() {
    let ended = run(
        Cores::Count(3),
        |count| vec![(); usize::from(count)],
        |shard, (), stopping| async move {
            if shard.shard() == ShardId::new(1) {
                return Err("no".to_owned());
            }
            stopping.requested().await;
            stopping.meet(&shard).await;
            Ok(())
        },
    );
    assert!(matches!(ended, Err(StartError::Shard(reason)) if reason == "no"));
}

#[test]
fn a_core_that_does_not_exist_is_named() {
    let layout = Layout::new::<String>(&Cores::List(vec![1000]));
    assert!(matches!(layout, Err(StartError::Core { core: 1000 })));
    assert!(matches!(Layout::new::<String>(&Cores::Count(0)), Err(StartError::ShardCount { count: 0 })));
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| u8::try_from((n * 7 + n / 251) % 256).unwrap()).collect()
}

/// One connection to one shard, which does `serve` with it; returns what `client` returns.
fn with_connection<T, F: Future<Output = Result<(), String>> + 'static>(
    serve: impl Fn(GlommioShard, broker::shard::tcp::TcpConn) -> F + Clone + Send + 'static,
    client: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> T
where
    T: Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || client(TcpStream::connect(address).unwrap()));
    let (socket, _) = listener.accept().unwrap();
    run(
        Cores::Count(1),
        |_| vec![OwnedFd::from(socket)],
        move |shard, socket, _| {
            let serve = serve.clone();
            async move {
                let conn = shard.adopt(socket).map_err(|error| error.to_string())?;
                serve(shard, conn).await
            }
        },
    )
    .unwrap();
    client.join().unwrap()
}

#[test]
fn bytes_of_any_size_come_in_and_go_out_whole() {
    let sizes = [1usize, 100, 16 << 10, (16 << 10) + 1, 3 << 20];
    let received = with_connection(
        move |_, conn| async move {
            assert!(conn.peer().ip().is_loopback());
            for size in sizes {
                let mut into = BytesMut::new();
                while into.len() < size {
                    let limit = (size - into.len()).min(1 << 20);
                    let count = conn.read(&mut into, limit).await.unwrap();
                    assert!(count > 0 && count <= limit);
                }
                let whole = into.freeze();
                let spans = whole.chunks(100_000).map(|part| Span::Memory(whole.slice_ref(part))).collect();
                conn.write(spans).await.unwrap();
            }
            assert_eq!(conn.read(&mut BytesMut::new(), 10).await.unwrap(), 0, "the client has closed");
            Ok(())
        },
        move |mut stream| {
            let mut received = Vec::new();
            for size in sizes {
                stream.write_all(&pattern(size)).unwrap();
                let mut echo = vec![0; size];
                stream.read_exact(&mut echo).unwrap();
                received.push(echo);
            }
            received
        },
    );
    for (size, echo) in sizes.into_iter().zip(received) {
        assert!(echo == pattern(size), "{size} bytes");
    }
}

#[test]
fn file_spans_and_memory_leave_in_order_through_a_full_socket() {
    spans_leave_in_order(&tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap());
}

/// tmpfs has no reads that do not wait: they failed in the middle of an answer.
#[test]
fn file_spans_of_a_tmpfs_leave_in_order_through_a_full_socket() {
    if let Ok(dir) = tempfile::tempdir_in("/dev/shm") {
        spans_leave_in_order(&dir);
    }
}

/// A slow reader, so that `sendfile` and `sendmsg` find the socket full.
fn spans_leave_in_order(dir: &tempfile::TempDir) {
    let path = dir.path().join("segment");
    let content = pattern(5 << 20);
    let for_shard = content.clone();
    let received = with_connection(
        move |shard, conn| {
            let (path, content) = (path.clone(), for_shard.clone());
            async move {
                let file = shard.open(&path, Open::Create).await.unwrap();
                let mut at = 0;
                while at < content.len() {
                    let piece = Bytes::copy_from_slice(&content[at..]);
                    at += file.write_at(piece, u64::try_from(at).unwrap()).await.unwrap();
                }
                file.sync_data().await.unwrap();
                let whole = file.span(0, 4 << 20);
                let tail = file.span(4 << 20, 1 << 20);
                drop(file);
                shard.dir(DirOp::Unlink(path)).await.unwrap();
                let Span::File { fd, .. } = &tail else { panic!() };
                // SAFETY: the descriptor is open.
                unsafe {
                    use std::os::fd::AsRawFd;
                    libc::posix_fadvise(fd.as_raw_fd(), 4 << 20, 0, libc::POSIX_FADV_DONTNEED)
                };
                let memory = |text: &'static str| Span::Memory(Bytes::from_static(text.as_bytes()));
                conn.write(smallvec![memory("head"), whole, memory("-"), memory("+"), tail]).await.unwrap();
                conn.write(smallvec![memory("end")]).await.unwrap();
                Ok(())
            }
        },
        |mut stream| {
            let mut received = Vec::new();
            let mut buffer = vec![0; 64 << 10];
            loop {
                match stream.read(&mut buffer).unwrap() {
                    0 => return received,
                    count => received.extend_from_slice(&buffer[..count]),
                }
                std::thread::yield_now();
            }
        },
    );
    let mut expected = b"head".to_vec();
    expected.extend_from_slice(&content[..4 << 20]);
    expected.extend_from_slice(b"-+");
    expected.extend_from_slice(&content[4 << 20..]);
    expected.extend_from_slice(b"end");
    assert!(received == expected);
}

/// Who reads the tail waits for a piece of each reader of old records, however many partitions an answer has.
#[test]
fn the_others_have_their_turn_after_each_piece_of_a_file_also_where_spans_are_small() {
    const SPAN: u32 = 16 << 10;
    const SPANS: u32 = 128;
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = dir.path().join("segment");
    let turns = Arc::new(AtomicU32::new(0));
    let counted = turns.clone();
    let received = with_connection(
        move |shard, conn| {
            let (path, counted) = (path.clone(), counted.clone());
            async move {
                let file = shard.open(&path, Open::Create).await.unwrap();
                let mut at = 0;
                let content = pattern(usize::try_from(SPAN * SPANS).unwrap());
                while at < content.len() {
                    let piece = Bytes::copy_from_slice(&content[at..]);
                    at += file.write_at(piece, u64::try_from(at).unwrap()).await.unwrap();
                }
                let spans = (0..SPANS).map(|span| file.span(u64::from(span * SPAN), SPAN)).collect();
                let others = async {
                    loop {
                        shard.turn().await;
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                };
                match futures_util::future::select(Box::pin(conn.write(spans)), Box::pin(others)).await {
                    Either::Left((written, _)) => written.unwrap(),
                    Either::Right(((), _)) => unreachable!("they go on for ever"),
                }
                conn.shutdown();
                Ok(())
            }
        },
        |mut stream| {
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            received.len()
        },
    );
    assert_eq!(received, usize::try_from(SPAN * SPANS).unwrap());
    let turns = turns.load(Ordering::Relaxed);
    assert!(turns >= SPAN * SPANS / (256 << 10) - 2, "{turns} turns");
}

#[test]
fn a_span_that_was_cut_is_an_error_and_a_shutdown_ends_a_read() {
    with_connection(
        |shard, conn| async move {
            let path = std::env::temp_dir().join(format!("odradek-shards-{}", std::process::id()));
            let file = shard.open(&path, Open::Create).await.unwrap();
            file.write_at(Bytes::from_static(b"abc"), 0).await.unwrap();
            let span = file.span(0, 100);
            shard.dir(DirOp::Unlink(path)).await.unwrap();
            let error = conn.write(smallvec![span]).await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
            let reader = conn.clone();
            let mut into = BytesMut::new();
            let mut read = Box::pin(reader.read(&mut into, 10));
            assert!(futures_util::poll!(&mut read).is_pending());
            conn.shutdown();
            assert_eq!(read.await.unwrap_or(0), 0);
            Ok(())
        },
        |mut stream| {
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
        },
    );
}
