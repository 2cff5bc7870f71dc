package store_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// TestMembersAcceptTheNextRoot: etcd reads its roots only at its start. Members that started with the
// earlier root connect to members with certificates of the next one, if the earlier root vouches for it.
// So no member has to be restarted when the root changes.
func TestMembersAcceptTheNextRoot(t *testing.T) {
	t.Parallel()
	ca := pkitest.New(t)
	env := pki.Env{Now: time.Now(), Rand: rand.Reader}
	next, err := ca.Root.NextRoot(env)
	if err != nil {
		t.Fatal(err)
	}
	vouched, err := ca.Root.Vouch(next.Cert, env)
	if err != nil {
		t.Fatal(err)
	}
	port := freeport.Reserve(t, 3)
	var cluster []string
	for i := range 3 {
		cluster = append(cluster, fmt.Sprintf("g%d=127.0.0.1:%d", i, port+i))
	}
	members, dirs, data := make([]*store.Etcd, 3), make([]string, 3), []string{t.TempDir(), t.TempDir(), t.TempDir()}
	open := func(i int) error {
		s, err := trust.Open(trust.Options{Dir: dirs[i]})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		members[i], err = store.OpenEtcd(ctx, store.EtcdConfig{
			Name: fmt.Sprintf("g%d", i), DataDir: data[i], PeerAddr: fmt.Sprintf("127.0.0.1:%d", port+i),
			InitialCluster: cluster, Identity: s, Logger: slog.New(slog.DiscardHandler),
		})
		return err
	}
	var g errgroup.Group
	for i := range 3 {
		dirs[i] = ca.Dir(fmt.Sprintf("global/g%d", i))
		g.Go(func() error { return open(i) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		for _, m := range members {
			m.Close()
		}
	}()
	both, err := pki.NewRoots(next.Cert, ca.Root.Cert)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		creds := issueBy(t, next, ca.ID(fmt.Sprintf("global/g%d", i)), env)
		creds.Chain, creds.Roots = append(creds.Chain, vouched), both
		if err := trust.Write(dirs[i], creds); err != nil {
			t.Fatal(err)
		}
	}
	// All connections of two members are made again, while the third one has the earlier root only.
	for _, i := range []int{1, 2} {
		if err := members[i].Close(); err != nil {
			t.Fatal(err)
		}
		if err := open(i); err != nil {
			t.Fatal(err)
		}
	}
	for i, m := range members {
		if _, err := m.Txn(t.Context(), nil, []store.Op{store.Put(fmt.Sprintf("k%d", i), []byte("v"))}); err != nil {
			t.Errorf("g%d: %v", i, err)
		}
	}
	// A port accepts a client like the etcd that has the earlier root only.
	pool := x509.NewCertPool()
	pool.AddCert(ca.Root.Cert)
	for i := range 3 {
		creds := issueBy(t, next, ca.ID("global/g9"), env)
		creds.Chain = append(creds.Chain, vouched)
		own := tls.Certificate{PrivateKey: creds.Key}
		for _, c := range creds.Chain {
			own.Certificate = append(own.Certificate, c.Raw)
		}
		config := &tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: pool, ServerName: pki.TierName(ca.Root.ID.Federation), Certificates: []tls.Certificate{own},
		}
		// A member looks at its files once a second.
		sent, err := vouchedBy(port+i, config)
		for end := time.Now().Add(20 * time.Second); err == nil && sent == 0 && time.Now().Before(end); sent, err = vouchedBy(port+i, config) {
			<-time.After(50 * time.Millisecond)
		}
		if err != nil || sent != 1 {
			t.Errorf("g%d sends %d certificates by which the earlier root vouches for the next one: %v", i, sent, err)
		}
	}
}

// vouchedBy returns how many certificates a port sends by which an earlier root vouches for the next one.
func vouchedBy(port int, config *tls.Config) (int, error) {
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), config)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	return len(pki.Vouched(conn.ConnectionState().PeerCertificates)), nil
}

// issueBy returns credentials of a member that an authority issues, without roots.
func issueBy(t *testing.T, a *pki.Authority, id identity.ID, env pki.Env) pki.Credentials {
	t.Helper()
	key, err := pki.NewKey(env.Rand)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := a.Issue(id, key.Public(), time.Hour, env)
	if err != nil {
		t.Fatal(err)
	}
	return pki.Credentials{Chain: []*x509.Certificate{cert}, Key: key}
}
