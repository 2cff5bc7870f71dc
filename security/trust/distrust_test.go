package trust_test

import (
	"crypto/rand"
	"crypto/x509"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// TestConnectionsOfARemovedRootEnd: once a root is trusted no more, connections whose peers showed a
// certificate of that root end, at both ends. Others continue.
func TestConnectionsOfARemovedRootEnd(t *testing.T) {
	t.Parallel()
	ca, env := pkitest.New(t), pki.Env{Now: time.Now(), Rand: rand.Reader}
	next, err := ca.Root.NextRoot(env)
	if err != nil {
		t.Fatal(err)
	}
	give := func(dir, path string, by *pki.Authority, roots ...*x509.Certificate) {
		t.Helper()
		key, err := pki.NewKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := by.Issue(ca.ID(path), key.Public(), time.Hour, env)
		if err != nil {
			t.Fatal(err)
		}
		trusted, err := pki.NewRoots(roots...)
		if err == nil {
			err = trust.Write(dir, pki.Credentials{Chain: []*x509.Certificate{cert}, Key: key, Roots: trusted})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	open := func(path string, by *pki.Authority) (*trust.Source, string) {
		t.Helper()
		dir := t.TempDir()
		give(dir, path, by, next.Cert, ca.Root.Cert)
		s, err := trust.Open(trust.Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return s, dir
	}
	server, dir := open("region/a/server/s1", next)
	early, _ := open("region/a/server/s2", ca.Root)
	late, _ := open("region/a/server/s3", next)
	rules := identity.ServersOf("a")
	addr := streams(t, server, rules)
	connect := func(s *trust.Source) net.Conn {
		t.Helper()
		c, err := s.Secure(t.Context(), dial(t, addr), rules)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	old, kept := connect(early), connect(late)
	echo := func(c net.Conn) error {
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
	for _, c := range []net.Conn{old, kept} {
		if err := echo(c); err != nil {
			t.Fatal(err)
		}
	}
	give(dir, "region/a/server/s1", next, next.Cert)
	_ = old.SetReadDeadline(time.Now().Add(30 * time.Second))
	ended := make(chan error, 1)
	go func() {
		_, err := old.Read(make([]byte, 1))
		ended <- err
	}()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	done := false
	for !done {
		select {
		case err := <-ended:
			if err == nil || os.IsTimeout(err) {
				t.Fatalf("the connection with a certificate of the removed root goes on: %v", err)
			}
			done = true
		case <-tick.C:
			_ = server.Ready() // looks at the files
		}
	}
	if err := echo(kept); err != nil {
		t.Errorf("the connection with a certificate of the later root has ended: %v", err)
	}
}
