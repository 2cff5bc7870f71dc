package wan

import (
	"encoding/binary"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

func openPacket(t *testing.T, w *WAN, region, addr string) net.PacketConn {
	t.Helper()
	c, err := w.Net(region).ListenPacket(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// echo sends each datagram back until the socket is closed.
func echo(c net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		c.WriteTo(buf[:n], from)
	}
}

func ping(t *testing.T, c net.PacketConn, to net.Addr) time.Duration {
	t.Helper()
	start := time.Now()
	if _, err := c.WriteTo([]byte("ping"), to); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.ReadFrom(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

func TestProbeMeasuresItsOwnRow(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		served := map[string]net.PacketConn{}
		for _, region := range []string{"a", "b", "c"} {
			served[region] = openPacket(t, w, region, "127.0.0.1:0")
			go echo(served[region])
		}
		for _, tc := range []struct {
			from, to string
			want     time.Duration
		}{
			{"a", "b", 40 * msec}, {"b", "a", 60 * msec}, {"a", "c", 10 * msec}, {"b", "b", 0}, {"elsewhere", "elsewhere", 0},
		} {
			c := openPacket(t, w, tc.from, "127.0.0.1:0")
			to := served[tc.to]
			if to == nil {
				to = openPacket(t, w, tc.to, "127.0.0.1:0")
				go echo(to)
			}
			for range 3 {
				if got := ping(t, c, to.LocalAddr()); got != tc.want {
					t.Errorf("%s to %s: %v, want %v", tc.from, tc.to, got, tc.want)
				}
			}
		}
		c := openPacket(t, w, "a", "127.0.0.1:0")
		w.SetRTT("a", "b", 100*msec)
		if got := ping(t, c, served["b"].LocalAddr()); got != 100*msec {
			t.Errorf("after the change: %v, want 100ms", got)
		}
		d := openPacket(t, w, "d", "127.0.0.1:0")
		if _, err := d.WriteTo([]byte("x"), served["a"].LocalAddr()); !errors.Is(err, ErrNoRoute) {
			t.Errorf("send where the table is blank: %v", err)
		}
	})
}

func TestDatagramsOvertakeOnlyWhenThePathGotShorter(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		from, to := openPacket(t, w, "a", "127.0.0.1:0"), openPacket(t, w, "b", "127.0.0.1:0")
		for i := range 10 {
			from.WriteTo([]byte{byte(i)}, to.LocalAddr())
		}
		w.SetRTT("a", "b", 2*msec)
		from.WriteTo([]byte{99}, to.LocalAddr())
		want := []byte{99, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
		buf := make([]byte, 1)
		for _, b := range want {
			if _, _, err := to.ReadFrom(buf); err != nil || buf[0] != b {
				t.Fatalf("got %d, %v; want %d", buf[0], err, b)
			}
		}
	})
}

func TestFullQueueDrops(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		from, to := openPacket(t, w, "a", "127.0.0.1:0"), openPacket(t, w, "b", "127.0.0.1:0")
		for i := range maxQueued + 100 {
			if _, err := from.WriteTo(binary.BigEndian.AppendUint32(nil, uint32(i)), to.LocalAddr()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		received := len(to.(*packetConn).PacketConn.(*memoryPackets).in)
		if received != maxQueued {
			t.Errorf("%d arrived, want %d", received, maxQueued)
		}
		if got := ping(t, from, from.LocalAddr()); got != 0 {
			t.Errorf("to its own region: %v", got)
		}
	})
}

func TestLossAndCutDropDatagrams(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		from, to := openPacket(t, w, "a", "127.0.0.1:0"), openPacket(t, w, "b", "127.0.0.1:0")
		arrived := func(n int) int {
			for range n {
				from.WriteTo([]byte("x"), to.LocalAddr())
			}
			time.Sleep(time.Second)
			synctest.Wait()
			in := to.(*packetConn).PacketConn.(*memoryPackets).in
			got := len(in)
			for range got {
				<-in
			}
			return got
		}
		w.SetLoss("a", "b", 0.25)
		if got := arrived(4000); got < 2900 || got > 3100 {
			t.Errorf("%d of 4000 arrived, want about 3000", got)
		}
		w.SetLoss("a", "b", 0)
		w.Cut("a", "b")
		if got := arrived(10); got != 0 {
			t.Errorf("%d crossed the cut", got)
		}
		w.Heal("a", "b")
		if got := arrived(10); got != 10 {
			t.Errorf("%d of 10 arrived after the cut was healed", got)
		}
		w.CutOneWay("b", "a")
		if got := arrived(10); got != 10 {
			t.Errorf("%d of 10 arrived while only the way back is cut", got)
		}
		w.CutOneWay("a", "b")
		if got := arrived(10); got != 0 {
			t.Errorf("%d crossed the one-way cut", got)
		}
		w.Heal("a", "b")
		from.WriteTo([]byte("on the way"), to.LocalAddr())
		w.Cut("a", "b")
		if got := arrived(0); got != 0 {
			t.Error("a datagram in flight crossed the cut")
		}
	})
}

func TestClosedPacketConnReleasesItsPort(t *testing.T) {
	inBubble(t, func(t *testing.T, w *WAN) {
		a, b := openPacket(t, w, "a", "127.0.0.1:7000"), openPacket(t, w, "b", "127.0.0.1:0")
		a.WriteTo([]byte("lost with its socket"), b.LocalAddr())
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if _, err := a.WriteTo([]byte("x"), b.LocalAddr()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("send after close: %v", err)
		}
		if len(w.flows) != 0 || w.packets[7000] != "" {
			t.Errorf("not released: flows %v, ports %v", w.flows, w.packets)
		}
		c := openPacket(t, w, "c", "127.0.0.1:7000") // another region takes the port
		go echo(b)
		if got := ping(t, c, b.LocalAddr()); got != 20*msec {
			t.Errorf("c to b: %v, want 20ms", got)
		}
	})
}
