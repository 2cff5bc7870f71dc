package store

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/internal/guard"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/trust"
)

const (
	// maxFront bounds the connections of a port. Each member opens a few.
	maxFront = 256
	// writeLimit bounds each write to another machine, as etcd does at its own ports.
	writeLimit = 5 * time.Second
)

// front is a port of the embedded member. It passes connections to a socket of the member. So the
// identity of the other end is verified as at the other ports of this server, and a connection
// that sends no request costs little.
type front struct {
	lis    net.Listener
	socket string
	// tls is nil without encryption.
	tls *tls.Config
	// source counts and logs refused connections.
	source *trust.Source

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// openFront opens the port. Connections wait until serve.
func openFront(ctx context.Context, addr, flag string, source *trust.Source, protocols ...string) (*front, error) {
	lis, err := serve.Listen(ctx, network.Host(), addr, flag)
	if err != nil {
		return nil, err
	}
	f := &front{lis: lis, tls: source.TLS(identity.GlobalServers(), protocols...), source: source}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f, nil
}

// serve passes connections to a socket until close.
func (f *front) serve(socket string) {
	f.socket = socket
	f.lis = guard.Open(f.lis, maxFront)
	if f.tls == nil {
		f.lis = guard.Requests(f.lis, maxFront/2, writeLimit)
	} else {
		f.lis = guard.Greeted(f.lis, maxFront/2, f.handshake)
	}
	f.wg.Add(1)
	go func() {
		defer f.wg.Done()
		for {
			conn, err := f.lis.Accept()
			if err != nil {
				return
			}
			f.wg.Add(1)
			go func() {
				defer f.wg.Done()
				f.relay(conn)
			}()
		}
	}()
}

// handshake returns a connection whose other end has proved an identity that may connect.
func (f *front) handshake(raw net.Conn) (net.Conn, error) {
	conn := tls.Server(raw, f.tls)
	err := conn.HandshakeContext(f.ctx)
	if err == nil {
		return conn, nil
	}
	if f.ctx.Err() == nil {
		f.source.Refuse(raw.RemoteAddr(), err)
	}
	raw.Close()
	return nil, err
}

// relay connects a connection to the socket until one of the two ends.
func (f *front) relay(conn net.Conn) {
	defer conn.Close()
	var d net.Dialer
	inner, err := d.DialContext(f.ctx, "unix", f.socket)
	if err != nil {
		return // the member stops
	}
	defer inner.Close()
	stop := context.AfterFunc(f.ctx, func() {
		conn.Close()
		inner.Close()
	})
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pass(inner, conn)
	}()
	pass(conn, inner)
	<-done
}

// pass copies bytes until one of the two ends. Then it closes both, after the other direction had
// a moment to deliver what was sent before.
func pass(to, from net.Conn) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			_ = to.SetWriteDeadline(time.Now().Add(writeLimit))
			if _, werr := to.Write(buffer[:n]); werr != nil {
				err = errors.Join(err, werr)
			}
		}
		if err != nil {
			break
		}
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_ = to.SetReadDeadline(time.Now().Add(writeLimit))
}

// addr returns the address of the port.
func (f *front) addr() string { return f.lis.Addr().String() }

// close ends the connections and closes the port.
func (f *front) close() {
	if f == nil {
		return
	}
	f.cancel()
	f.lis.Close()
	f.wg.Wait()
}
