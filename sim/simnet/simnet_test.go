package simnet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim/simnet"
)

const a, b, c = "10.0.0.1", "10.0.0.2", "10.0.0.3"

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// connect returns both ends of a stream from a to b.
func connect(t *testing.T, n *simnet.Network) (near, far net.Conn) {
	t.Helper()
	l := must[net.Listener](t)(n.Net(b).Listen(t.Context(), b+":80"))
	defer l.Close()
	near = must[net.Conn](t)(n.Net(a).Dial(t.Context(), b+":80"))
	return near, must[net.Conn](t)(l.Accept())
}

// TestConforms runs the suite for implementations of net.Conn.
func TestConforms(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		near, far := connect(t, simnet.New(simnet.Options{}))
		return near, far, func() { near.Close(); far.Close() }, nil
	})
}

func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Options{Latency: func(from, to string) time.Duration {
			if from == a {
				return 30 * time.Millisecond
			}
			return 50 * time.Millisecond
		}})
		start := time.Now()
		lap := func(what string, want time.Duration) {
			t.Helper()
			if d := time.Since(start); d != want {
				t.Errorf("%s after %v, want %v", what, d, want)
			}
			start = time.Now()
		}
		near, far := connect(t, n)
		lap("connected", 80*time.Millisecond)
		buf := make([]byte, 10)
		must[int](t)(near.Write([]byte("hello")))
		must[int](t)(near.Write([]byte("you")))
		lap("written", 0)
		if k := must[int](t)(far.Read(buf)); string(buf[:k]) != "hello" {
			t.Errorf("read %q", buf[:k])
		}
		lap("there", 30*time.Millisecond)
		must[int](t)(far.Read(buf))
		must[int](t)(far.Write([]byte("x")))
		far.Close()
		must[int](t)(near.Read(buf))
		lap("back", 50*time.Millisecond)
		if _, err := near.Read(buf); err != io.EOF {
			t.Errorf("after the peer closed: %v", err)
		}
		near.Close()
	})
}

func TestWindowAndDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := connect(t, simnet.New(simnet.Options{}))
		defer near.Close()
		defer far.Close()
		near.SetWriteDeadline(time.Now().Add(time.Minute))
		start := time.Now()
		k, err := near.Write(make([]byte, 1<<20))
		if !errors.Is(err, os.ErrDeadlineExceeded) || k != 256<<10 || time.Since(start) != time.Minute {
			t.Errorf("wrote %d, %v after %v", k, err, time.Since(start))
		}
		near.SetWriteDeadline(time.Time{})
		done := make(chan error, 1)
		go func() {
			_, err := near.Write([]byte("more"))
			near.Close()
			done <- err
		}()
		all := must[[]byte](t)(io.ReadAll(far))
		if err := <-done; err != nil || len(all) != 256<<10+4 {
			t.Errorf("read %d, %v", len(all), err)
		}
	})
}

func TestCutAndHeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Options{})
		near, far := connect(t, n)
		defer near.Close()
		defer far.Close()
		n.Cut(b, a)
		must[int](t)(near.Write([]byte("x")))
		far.SetReadDeadline(time.Now().Add(time.Hour))
		buf := make([]byte, 10)
		if _, err := far.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("through a cut: %v", err)
		}
		far.SetReadDeadline(time.Time{})
		start := time.Now()
		_, err := n.Net(a).Dial(t.Context(), b+":80")
		if !errors.Is(err, syscall.ETIMEDOUT) || time.Since(start) != 20*time.Second {
			t.Errorf("dial: %v after %v", err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := n.Net(a).Dial(ctx, b+":80"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dial with a deadline: %v", err)
		}
		time.AfterFunc(time.Second, func() { n.Heal(a, b) })
		if k, err := far.Read(buf); k != 1 || err != nil {
			t.Errorf("after the heal: %d, %v", k, err)
		}
	})
}

func TestKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Options{})
		near, far := connect(t, n)
		old := n.Net(b)
		l := must[net.Listener](t)(old.Listen(t.Context(), ":90"))
		p := must[net.PacketConn](t)(old.ListenPacket(t.Context(), ":90"))
		must[int](t)(far.Write([]byte("last")))
		synctest.Wait()
		time.Sleep(time.Second)
		n.Cut(a, b)
		n.Kill(b)
		buf := make([]byte, 10)
		near.SetReadDeadline(time.Now().Add(time.Hour))
		if _, err := near.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("cut off: %v, want silence", err)
		}
		near.SetReadDeadline(time.Time{})
		n.Heal(a, b)
		if k, err := near.Read(buf); k != 4 || err != nil {
			t.Errorf("what had arrived: %d, %v", k, err)
		}
		if _, err := near.Read(buf); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read: %v", err)
		}
		if _, err := near.Write(buf); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("write: %v", err)
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("accept: %v", err)
		}
		if _, _, err := p.ReadFrom(buf); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read packet: %v", err)
		}
		if _, err := old.Listen(t.Context(), ":91"); !errors.Is(err, net.ErrClosed) {
			t.Errorf("listen on a dead host: %v", err)
		}
		if _, err := n.Net(a).Dial(t.Context(), b+":90"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial: %v", err)
		}
		// The host returns under the same address.
		again := must[net.Listener](t)(n.Net(b).Listen(t.Context(), ":90"))
		defer again.Close()
		must[net.Conn](t)(n.Net(a).Dial(t.Context(), b+":90")).Close()
	})
}

// TestWriteAfterClose: after a close, a write fails only when a read waits no more. Otherwise a gRPC client, whose
// writer has ended and whose reader has not, creates streams on the connection again and again.
func TestWriteAfterClose(t *testing.T) {
	const trip = 10 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Options{Latency: func(string, string) time.Duration { return trip }})
		near, far := connect(t, n)
		far.Close()
		must[int](t)(near.Write([]byte("lost"))) // the close has not arrived
		closed := time.Now()
		for { // the window bounds what a writer can write before the close arrives
			_, err := near.Write(make([]byte, 32<<10))
			if errors.Is(err, syscall.ECONNRESET) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(closed); took != trip {
			t.Errorf("the write failed after %v, want %v", took, trip)
		}
		if _, err := near.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("read: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Options{Latency: func(string, string) time.Duration { return trip }})
		near, far := connect(t, n)
		must[int](t)(far.Write([]byte("last")))
		far.Close()
		time.Sleep(trip)
		if _, err := near.Write([]byte("late")); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("write: %v", err)
		}
		buf := make([]byte, 10)
		if k, err := near.Read(buf); k != 4 || err != nil {
			t.Errorf("the last data: %d, %v", k, err)
		}
		if _, err := near.Read(buf); err != io.EOF {
			t.Errorf("read: %v", err)
		}
	})
}

func TestBreakAndTap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Options{})
		near, far := connect(t, n)
		n.Break(a, b)
		for _, e := range []net.Conn{near, far} {
			if _, err := e.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("read: %v", err)
			}
		}
		near, far = connect(t, n)
		count := 0
		n.Tap(func(w simnet.Write) bool {
			count++
			if w.To != b+":80" || w.Bytes != count {
				t.Errorf("write %d is %+v", count, w)
			}
			return count < 3
		})
		for i := 1; i < 3; i++ {
			must[int](t)(near.Write(make([]byte, i)))
		}
		if _, err := near.Write(make([]byte, 3)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the lost write: %v", err)
		}
		if _, err := far.Read(make([]byte, 9)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("its reader: %v", err)
		}
	})
}

func TestPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Options{Loss: 0.25, Seed: 1})
		from := must[net.PacketConn](t)(n.Net(a).ListenPacket(t.Context(), "0.0.0.0:0"))
		to := must[net.PacketConn](t)(n.Net(b).ListenPacket(t.Context(), b+":53"))
		defer from.Close()
		defer to.Close()
		// receive counts the datagrams that arrive within a second.
		receive := func() (count int) {
			buf := make([]byte, 100)
			to.SetReadDeadline(time.Now().Add(time.Second))
			for {
				k, addr, err := to.ReadFrom(buf)
				if err != nil {
					return count
				}
				if k != 5 || addr.String() != from.LocalAddr().String() {
					t.Errorf("%d bytes from %v", k, addr)
				}
				count++
			}
		}
		send := func(k int) {
			for range k {
				must[int](t)(from.WriteTo([]byte("hello"), to.LocalAddr()))
			}
		}
		send(200)
		if got := receive(); got < 130 || got > 170 {
			t.Errorf("%d of 200 arrived with a quarter lost", got)
		}
		send(1000)
		if got := receive(); got != 256 {
			t.Errorf("%d arrived, the queue holds 256", got)
		}
		n.Cut(a, b)
		send(10)
		n.Heal(a, b)
		if got := receive(); got != 0 {
			t.Errorf("%d passed a cut", got)
		}
		must[int](t)(from.WriteTo([]byte("x"), &net.UDPAddr{IP: net.ParseIP(c), Port: 1}))
		if _, err := from.WriteTo(make([]byte, 70_000), to.LocalAddr()); !errors.Is(err, syscall.EMSGSIZE) {
			t.Errorf("too long: %v", err)
		}
	})
}

func TestAddresses(t *testing.T) {
	n := simnet.New(simnet.Options{})
	h := n.Net(a)
	l := must[net.Listener](t)(h.Listen(t.Context(), "127.0.0.1:80"))
	if got := l.Addr().String(); got != a+":80" {
		t.Errorf("loopback is %s", got)
	}
	if _, err := h.Listen(t.Context(), a+":80"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("twice: %v", err)
	}
	if _, err := h.Listen(t.Context(), b+":80"); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("another host's address: %v", err)
	}
	l.Close()
	must[net.Listener](t)(h.Listen(t.Context(), a+":80"))
	must[net.Conn](t)(h.Dial(t.Context(), "localhost:80"))
}

type jobs struct {
	nusav1.UnimplementedJobsServer
}

func (jobs) Watch(r *nusav1.GetJobRequest, stream grpc.ServerStreamingServer[nusav1.Job]) error {
	for i := range 100 {
		if err := stream.Send(&nusav1.Job{Version: int64(i)}); err != nil {
			return err
		}
		select {
		case <-time.After(time.Minute):
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
	return nil
}

func (jobs) Submit(_ context.Context, r *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) {
	return &nusav1.SubmitResponse{Version: int64(len(r.GetIdempotencyKey()))}, nil
}

// TestGRPC: an hour of a stream takes no real time, and keepalive finds a silent peer.
func TestGRPC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(simnet.Options{})
		s := must[*serve.Server](t)(serve.Open(t.Context(), serve.Options{Net: n.Net(b), GRPCAddr: ":7600", HTTPAddr: ":7601"}))
		nusav1.RegisterJobsServer(s.GRPC, jobs{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		conn := must[*grpc.ClientConn](t)(serve.Dial(n.Net(a), b+":7600"))
		client := nusav1.NewJobsClient(conn)
		watch := must[grpc.ServerStreamingClient[nusav1.Job]](t)(client.Watch(t.Context(), &nusav1.GetJobRequest{}))
		start := time.Now()
		for range 61 {
			must[*nusav1.Job](t)(watch.Recv())
		}
		if d := time.Since(start).Round(time.Minute); d != time.Hour {
			t.Errorf("took %v", d)
		}
		big := string(bytes.Repeat([]byte("x"), 3<<20))
		if r := must[*nusav1.SubmitResponse](t)(client.Submit(t.Context(), &nusav1.SubmitRequest{IdempotencyKey: big})); r.GetVersion() != 3<<20 {
			t.Errorf("answer %v", r)
		}
		n.Cut(a, b)
		start = time.Now()
		var err error
		for err == nil {
			_, err = watch.Recv()
		}
		if d := time.Since(start); status.Code(err) != codes.Unavailable || d > 30*time.Second {
			t.Errorf("cut off: %v after %v", err, d)
		}
		n.Heal(a, b)
		must[*nusav1.SubmitResponse](t)(client.Submit(t.Context(), &nusav1.SubmitRequest{}, grpc.WaitForReady(true)))
		conn.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func ExampleNetwork() {
	n := simnet.New(simnet.Options{})
	l, _ := n.Net("10.0.0.2").Listen(context.Background(), ":80")
	go func() {
		conn, _ := l.Accept()
		fmt.Fprint(conn, "hello")
		conn.Close()
	}()
	conn, _ := n.Net("10.0.0.1").Dial(context.Background(), "10.0.0.2:80")
	text, _ := io.ReadAll(conn)
	fmt.Println(string(text))
	// Output: hello
}
