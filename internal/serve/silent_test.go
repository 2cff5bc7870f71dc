package serve_test

import (
	"context"
	"crypto/rand"
	"net"
	"net/http"
	"os"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
)

// TestSilentConnectionsCostLittle: thousands of connections that say nothing, send slowly or send garbage
// are closed, and the server answers meanwhile.
func TestSilentConnectionsCostLittle(t *testing.T) {
	s, err := serve.Open(t.Context(), serve.Options{Net: network.Host(), GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", Grace: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	conn, err := serve.Dial(network.Host(), s.GRPCAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	call := func() {
		t.Helper()
		other, err := serve.Dial(network.Host(), s.GRPCAddr())
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		for _, c := range []grpc_health_v1.HealthClient{grpc_health_v1.NewHealthClient(conn), grpc_health_v1.NewHealthClient(other)} {
			if _, err := c.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
				t.Errorf("a call: %v", err)
			}
		}
		resp, err := http.Get("http://" + s.HTTPAddr() + "/livez")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	call()
	var before, during runtime.MemStats
	runtime.ReadMemStats(&before)
	goroutines := runtime.NumGoroutine()
	garbage := make([]byte, 4000)
	_, _ = rand.Read(garbage)
	var silent []net.Conn
	for i := range 2000 {
		for _, addr := range []string{s.GRPCAddr(), s.HTTPAddr()} {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			switch i % 4 {
			case 1:
				_, _ = c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
			case 2:
				_, _ = c.Write([]byte("GET / HT"))
			case 3:
				_, _ = c.Write(garbage)
			}
			silent = append(silent, c)
		}
	}
	call()
	runtime.ReadMemStats(&during)
	if n := runtime.NumGoroutine() - goroutines; n > 1024*4+256*2+100 {
		t.Errorf("%d more goroutines", n)
	}
	if mib := int64(during.HeapInuse-before.HeapInuse) >> 20; mib > 150 {
		t.Errorf("%d MiB more", mib)
	}
	end := time.Now().Add(time.Minute)
	open := 0
	for _, c := range silent {
		_ = c.SetReadDeadline(end)
		for {
			if _, err := c.Read(garbage); err != nil {
				if os.IsTimeout(err) {
					open++
				}
				break
			}
		}
	}
	if open > 0 {
		t.Errorf("after a minute %d connections are open", open)
	}
	call()
}
