package guard

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
)

// counting is a pool that counts the buffers in use. returned gets a value at each return.
type counting struct {
	mem.BufferPool
	taken    atomic.Int64
	returned chan struct{}
}

func (c *counting) Get(size int) *[]byte { c.taken.Add(1); return c.BufferPool.Get(size) }
func (c *counting) Put(b *[]byte) {
	c.taken.Add(-1)
	c.BufferPool.Put(b)
	c.returned <- struct{}{}
}

// TestQuietConnectionHasNoBuffer: a connection takes a buffer of gRPC only for bytes that have
// arrived. Everything that was sent arrives, and a first request is still looked for.
func TestQuietConnectionHasNoBuffer(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	guarded := Requests(lis, Most, time.Second)
	defer guarded.Close()
	pool := &counting{BufferPool: mem.DefaultBufferPool(), returned: make(chan struct{}, 1000)}
	open := func() (client net.Conn, server *followed) {
		client, err := net.Dial("tcp", lis.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn, err := guarded.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return client, conn.(*followed)
	}
	client, server := open()
	defer server.Close()
	const text = "GET / HTTP/1.1\r\n\r\nand a long body"
	read := make(chan string)
	go func() {
		defer close(read)
		for {
			b, n, err := server.ReadOnReady(7, pool)
			if n > 0 {
				read <- string((*b)[:n])
				pool.Put(b)
			}
			if err != nil {
				if err != io.EOF || n != 0 || b != nil {
					t.Errorf("the end of the stream: %d bytes, %v", n, err)
				}
				return
			}
		}
	}()
	<-pool.returned // the socket has no bytes yet
	if n := pool.taken.Load(); n != 0 {
		t.Errorf("a quiet connection has %d buffers", n)
	}
	got := ""
	for _, part := range []string{text[:1], text[1:20], text[20:]} {
		if _, err := client.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
		for want := len(got) + len(part); len(got) < want; {
			got += <-read
		}
	}
	client.Close()
	if rest, more := <-read; more || got != text {
		t.Errorf("read %q and %q", got, rest)
	}
	if n := pool.taken.Load(); n != 0 || server.request != nil {
		t.Errorf("%d buffers are not returned; waits for a request: %t", n, server.request != nil)
	}

	client, server = open()
	defer client.Close()
	if _, err := client.Write([]byte(preface + "\xff\xff\xff\x04\x00\x00\x00\x00\x00")); err != nil { // settings of 16 MiB
		t.Fatal(err)
	}
	if _, n, err := server.ReadOnReady(100, pool); n != 0 || !errors.Is(err, net.ErrClosed) || pool.taken.Load() != 0 {
		t.Errorf("bytes that are no request: %d, %v", n, err)
	}
	server.Close()
	if _, n, err := server.ReadOnReady(7, pool); n != 0 || err == nil {
		t.Errorf("after it was closed: %d, %v", n, err)
	}
}
