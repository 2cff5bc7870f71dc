package trust_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// streams accepts streams and returns what it reads to their peers.
func streams(t *testing.T, s *trust.Source, rules identity.Rules) string {
	t.Helper()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lis := s.Listener(raw, rules)
	var done sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	done.Go(func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			done.Go(func() {
				_, _ = io.Copy(c, c)
				c.Close()
			})
		}
	})
	t.Cleanup(func() {
		lis.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		done.Wait()
	})
	return raw.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	return c
}

// echoed sends a text over a stream and returns the error of the way back.
func echoed(t *testing.T, addr string, s *trust.Source, rules identity.Rules) error {
	t.Helper()
	c, err := s.Secure(t.Context(), dial(t, addr), rules)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.WriteString(c, "hello"); err != nil {
		return err
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != "hello" {
		t.Errorf("read %q", got)
	}
	return nil
}

func TestStreams(t *testing.T) {
	ca, foreign := pkitest.New(t), pkitest.New(t)
	s1, s2 := ca.Source("region/a/server/s1"), ca.Source("region/a/server/s2")
	addr := streams(t, s1, servers)
	for name, c := range map[string]struct {
		client *trust.Source
		expect identity.Rules
		want   error
	}{
		"right":                  {s2, servers, nil},
		"an agent":               {ca.Source("region/a/agent/n1"), servers, trust.ErrRefused},
		"a server of region b":   {ca.Source("region/b/server/s1"), servers, trust.ErrRefused},
		"another federation":     {foreign.Source("region/a/server/s1"), servers, nil},
		"expects another region": {s2, identity.Rules{{Kind: identity.Server, Region: "b"}}, identity.ErrNotExpected},
	} {
		err := echoed(t, addr, c.client, c.expect)
		if name == "another federation" {
			if err == nil || !strings.Contains(err.Error(), "unknown authority") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if err := echoed(t, addr, s2, servers); err != nil {
		t.Errorf("after the attacks: %v", err)
	}
}

// TestStreamsAreNoGRPC: a connection for one port cannot be led to another port.
func TestStreamsAreNoGRPC(t *testing.T) {
	ca := pkitest.New(t)
	s1, s2 := ca.Source("region/a/server/s1"), ca.Source("region/a/server/s2")
	if err := call(t, streams(t, s1, servers), s2, servers); err == nil {
		t.Error("gRPC reached a port for streams")
	}
	e := serve(t, s1, servers)
	if _, err := s2.Secure(t.Context(), dial(t, e.addr), servers); err == nil {
		t.Error("a stream reached a port for gRPC")
	}
	agent := ca.Issue("region/a/server/s2")
	cert := tls.Certificate{PrivateKey: agent.Key, Certificate: [][]byte{agent.Chain[0].Raw, agent.Chain[1].Raw}}
	c := tls.Client(dial(t, streams(t, s1, servers)), &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true})
	if _, err := io.ReadAll(c); err == nil {
		t.Error("a stream without a protocol was accepted")
	}
}

// TestSilentStreams: connections on which nothing is sent do not keep others out, and the
// oldest of too many is closed.
func TestSilentStreams(t *testing.T) {
	ca := pkitest.New(t)
	s1, s2 := ca.Source("region/a/server/s1"), ca.Source("region/a/server/s2")
	addr := streams(t, s1, servers)
	const most = 1024
	first := dial(t, addr)
	for range most {
		dial(t, addr)
	}
	if _, err := first.Read(make([]byte, 1)); err == nil {
		t.Error("the oldest of too many connections is still open")
	} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Error("the oldest of too many connections is still open")
	}
	if err := echoed(t, addr, s2, servers); err != nil {
		t.Errorf("a regular stream beside %d silent ones: %v", most, err)
	}
}
