package wan

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nusa-scheduler/nusa/topology"
)

const msec = time.Millisecond

// lab returns an asymmetric table: a to b 40 ms, b to a 60 ms, and blanks for d.
func lab(t *testing.T) *topology.Table {
	t.Helper()
	table, err := topology.ParseTable(strings.NewReader("ms,a,b,c,d\na,,40,10,\nb,60,,20,\nc,10,20,,\n"))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// inBubble runs a test over the lab table in virtual time.
func inBubble(t *testing.T, test func(t *testing.T, w *WAN)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := New(Config{Table: lab(t), Inner: newMemory().net(), Seed: 1})
		defer w.Close()
		test(t, w)
	})
}

// connect returns both ends of a stream that is dialled from one region to another.
func connect(t *testing.T, w *WAN, from, to string) (near, far net.Conn) {
	t.Helper()
	l, err := w.Net(to).Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
		close(accepted)
	}()
	near, err = w.Net(from).Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far = <-accepted
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

func took(t *testing.T, what string, since time.Time, want time.Duration) {
	t.Helper()
	if got := time.Since(since); got != want {
		t.Errorf("%s took %v, want %v", what, got, want)
	}
}

func TestConnectTakesOneRoundTrip(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		for _, tc := range []struct {
			from, to string
			want     time.Duration
		}{
			{"a", "b", 40 * msec}, {"b", "a", 60 * msec}, {"a", "a", 0}, {"elsewhere", "elsewhere", 0},
		} {
			start := time.Now()
			connect(t, w, tc.from, tc.to)
			took(t, tc.from+" to "+tc.to, start, tc.want)
		}
		start := time.Now()
		l, err := w.Net("b").Listen(t.Context(), "127.0.0.1:7000")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Net("d").Dial(t.Context(), "127.0.0.1:7000"); !errors.Is(err, ErrNoRoute) {
			t.Errorf("dial where the table is blank: %v, want ErrNoRoute", err)
		}
		l.Close()
		if _, err := w.Net("a").Dial(t.Context(), "127.0.0.1:7000"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial to a closed port: %v, want refused", err)
		}
		took(t, "dial to unknown ports", start, 0)
	})
}

// A port that is registered but does not accept refuses after a round trip.
func TestRefusalTakesOneRoundTrip(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		defer w.register(w.streams, 7001, "b")()
		start := time.Now()
		if _, err := w.Net("a").Dial(t.Context(), "127.0.0.1:7001"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial: %v, want refused", err)
		}
		took(t, "refusal", start, 40*msec)
	})
}

func TestStreamIsDelayedHalfARoundTripEachWay(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		near, far := connect(t, w, "a", "b")
		buf := make([]byte, 16)
		for _, way := range []struct {
			from, to net.Conn
		}{{near, far}, {far, near}} {
			start := time.Now()
			go way.from.Write([]byte("hello"))
			if n, err := way.to.Read(buf); err != nil || string(buf[:n]) != "hello" {
				t.Errorf("read %q, %v", buf[:n], err)
			}
			took(t, "one way", start, 20*msec)
		}
	})
}

func TestManyWritesArePipelinedAndKeepTheirOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		near, far := connect(t, w, "a", "b")
		start := time.Now()
		go func() {
			for i := range 100 {
				if i == 50 { // packets in flight are not overtaken by faster ones
					w.SetRTT("a", "b", 2*msec)
				}
				near.Write([]byte{byte(i)})
			}
			near.Close()
		}()
		got, err := io.ReadAll(far)
		if err != nil || len(got) != 100 {
			t.Fatalf("read %d bytes, %v", len(got), err)
		}
		for i, b := range got {
			if int(b) != i {
				t.Fatalf("byte %d is %d", i, b)
			}
		}
		took(t, "hundred writes and a close", start, 20*msec)
	})
}

func TestWritesBlockWhenTooMuchIsInFlight(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		near, far := connect(t, w, "a", "b")
		near.SetWriteDeadline(time.Now().Add(time.Second))
		start := time.Now()
		n, err := near.Write(make([]byte, maxInFlight+10))
		if n != maxInFlight || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("wrote %d, %v; want %d and the deadline", n, err, maxInFlight)
		}
		took(t, "blocked write", start, time.Second)
		near.SetWriteDeadline(time.Time{})
		wrote := make(chan error, 1)
		go func() {
			_, err := near.Write(make([]byte, 10))
			wrote <- err
			near.Close()
		}()
		all, err := io.ReadAll(far)
		if err != nil || len(all) != maxInFlight+10 {
			t.Errorf("read %d, %v", len(all), err)
		}
		if err := <-wrote; err != nil {
			t.Errorf("write after room was made: %v", err)
		}
	})
}

func TestUnreadBytesBlockTheSender(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		near, far := connect(t, w, "a", "b")
		wrote := make(chan int, 1)
		go func() {
			far.SetWriteDeadline(time.Now().Add(time.Minute))
			n, _ := far.Write(make([]byte, 2*maxInFlight))
			wrote <- n
		}()
		if n := <-wrote; n < maxInFlight || n > maxInFlight+2*readChunk {
			t.Errorf("the sender wrote %d bytes that were not read, want about %d", n, maxInFlight)
		}
		near.SetReadDeadline(time.Now().Add(time.Second))
		if n, err := io.ReadAll(near); len(n) < maxInFlight || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read %d, %v", len(n), err)
		}
	})
}

func TestDeadlinesEndReadsAndWrites(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		near, far := connect(t, w, "a", "b")
		start := time.Now()
		near.SetReadDeadline(start.Add(30 * msec))
		var timeout net.Error
		if _, err := near.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("read: %v, want a timeout", err)
		}
		took(t, "read deadline", start, 30*msec)
		near.SetDeadline(time.Now().Add(-time.Second))
		if _, err := near.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write after the deadline: %v", err)
		}
		near.SetDeadline(time.Time{})
		// Extending a deadline extends a waiting read.
		near.SetReadDeadline(time.Now().Add(10 * msec))
		time.AfterFunc(5*msec, func() { near.SetReadDeadline(time.Now().Add(time.Hour)) })
		go far.Write([]byte("x"))
		if _, err := near.Read(make([]byte, 1)); err != nil {
			t.Errorf("read with an extended deadline: %v", err)
		}
	})
}

func TestCloseDeliversWhatWasWritten(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		near, far := connect(t, w, "a", "b")
		start := time.Now()
		near.Write([]byte("last words"))
		if err := near.Close(); err != nil {
			t.Error(err)
		}
		took(t, "close", start, 0)
		if err := near.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("second close: %v", err)
		}
		if _, err := near.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("write after close: %v", err)
		}
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read after close: %v", err)
		}
		got, err := io.ReadAll(far)
		if err != nil || string(got) != "last words" {
			t.Errorf("read %q, %v", got, err)
		}
		took(t, "last words and end", start, 20*msec)
	})
}

func TestPeersCloseArrivesAfterHalfARoundTrip(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		near, far := connect(t, w, "a", "b")
		start := time.Now()
		go func() {
			far.Write([]byte("bye"))
			far.Close()
		}()
		got, err := io.ReadAll(near)
		if err != nil || string(got) != "bye" {
			t.Errorf("read %q, %v", got, err)
		}
		took(t, "the peer's end", start, 20*msec)
	})
}

func TestCloseDoesNotWaitForAPeerThatDoesNotRead(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		near, _ := connect(t, w, "a", "b")
		near.Write([]byte("this is never read"))
		near.Close()
		time.Sleep(linger + time.Second)
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.open) != 0 {
			t.Error("the stream is still open")
		}
	})
}

func TestCutStallsStreamsUntilHealed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		near, far := connect(t, w, "a", "b")
		w.Cut("b", "a")
		near.Write([]byte("held up"))
		go far.Write([]byte("held up too"))
		for _, c := range []net.Conn{near, far} {
			c.SetReadDeadline(time.Now().Add(time.Second))
			if _, err := c.Read(make([]byte, 16)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("read across the cut: %v", err)
			}
			c.SetReadDeadline(time.Time{})
		}
		l, err := w.Net("b").Listen(t.Context(), "127.0.0.1:7002")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		if _, err := w.Net("a").Dial(ctx, "127.0.0.1:7002"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dial across the cut: %v", err)
		}
		took(t, "dial across the cut", start, 3*time.Second)
		if c, err := w.Net("c").Dial(t.Context(), "127.0.0.1:7002"); err != nil {
			t.Errorf("another region is cut too: %v", err)
		} else {
			c.Close()
		}

		w.Heal("a", "b")
		for _, c := range []net.Conn{near, far} {
			if n, err := c.Read(make([]byte, 16)); err != nil || n < len("held up") {
				t.Errorf("read after the cut was healed: %d, %v", n, err)
			}
		}
	})
}

// TestTableMayChange: a new table applies at once, also to pairs that SetRTT has set. A
// blank stalls open streams until a later table fills it.
func TestTableMayChange(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		table := func(ab string) *topology.Table {
			t.Helper()
			table, err := topology.ParseTable(strings.NewReader("ms,a,b\na,," + ab + "\nb,60,\n"))
			if err != nil {
				t.Fatal(err)
			}
			return table
		}
		near, far := connect(t, w, "a", "b")
		w.SetRTT("a", "b", 10*msec)
		w.SetTable(table("200"))
		start := time.Now()
		near.Write([]byte("slow"))
		if _, err := io.ReadFull(far, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		took(t, "a write by the new table", start, 100*msec)

		w.SetTable(table("-"))
		near.Write([]byte("held"))
		far.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := far.Read(make([]byte, 4)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read over a blank: %v", err)
		}
		far.SetReadDeadline(time.Time{})
		if _, err := w.RTT("a", "b"); !errors.Is(err, ErrNoRoute) {
			t.Errorf("round trip of a blank: %v", err)
		}
		w.SetTable(table("40"))
		if _, err := io.ReadFull(far, make([]byte, 4)); err != nil {
			t.Errorf("read after the blank is filled: %v", err)
		}
	})
}

func TestCloseDoesNotCrossACut(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		near, far := connect(t, w, "a", "b")
		w.Cut("a", "b")
		near.Close()
		far.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := far.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read: %v, want no data", err)
		}
		w.Heal("a", "b")
		far.SetReadDeadline(time.Time{})
		if _, err := far.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("read after the cut was healed: %v, want the end", err)
		}
	})
}

func TestWANCloseEndsEverything(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		near, far := connect(t, w, "a", "b")
		w.Cut("a", "b")
		near.Write([]byte("lost"))
		dialled := make(chan error, 1)
		l, _ := w.Net("b").Listen(t.Context(), "127.0.0.1:7003")
		defer l.Close()
		go func() {
			_, err := w.Net("a").Dial(t.Context(), "127.0.0.1:7003")
			dialled <- err
		}()
		synctest.Wait()
		w.Close()
		if err := <-dialled; !errors.Is(err, ErrClosed) {
			t.Errorf("dial: %v, want ErrClosed", err)
		}
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, ErrClosed) {
			t.Errorf("read: %v, want ErrClosed", err)
		}
		if _, err := far.Read(make([]byte, 1)); err == nil {
			t.Error("the far end is still open")
		}
		w.Close() // again: no effect
	})
}

// Random chunks in both directions at once arrive completely and in order.
func TestStreamCarriesEverything(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		near, far := connect(t, w, "a", "b")
		sums := make(chan [32]byte, 2)
		send := func(c net.Conn, seed uint64) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			var all bytes.Buffer
			for range 200 {
				chunk := make([]byte, rnd.IntN(3*readChunk))
				for i := range chunk {
					chunk[i] = byte(rnd.Uint32())
				}
				all.Write(chunk)
				if n, err := c.Write(chunk); n != len(chunk) || err != nil {
					t.Errorf("write: %d of %d, %v", n, len(chunk), err)
				}
			}
			sums <- sha256.Sum256(all.Bytes())
			c.Close()
		}
		go send(near, 1)
		got, err := io.ReadAll(far)
		if want := <-sums; err != nil || sha256.Sum256(got) != want {
			t.Errorf("near to far: %d bytes, %v: not what was sent", len(got), err)
		}
		near, far = connect(t, w, "a", "b")
		go send(far, 2)
		got, err = io.ReadAll(near)
		if want := <-sums; err != nil || sha256.Sum256(got) != want {
			t.Errorf("far to near: %d bytes, %v: not what was sent", len(got), err)
		}
	})
}
