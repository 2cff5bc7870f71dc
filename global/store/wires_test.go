package store_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	"github.com/nusa-scheduler/nusa/internal/guard"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// TestMembersProveWhoTheyAre: three members with identities form a cluster over TLS, and continue with
// renewed certificates. Their ports refuse connections without encryption, without a certificate, of
// another federation, and of another kind of member.
func TestMembersProveWhoTheyAre(t *testing.T) {
	t.Parallel()
	ca, other := pkitest.New(t), pkitest.New(t)
	port := freeport.Reserve(t, 4)
	var cluster []string
	for i := range 3 {
		cluster = append(cluster, fmt.Sprintf("g%d=127.0.0.1:%d", i, port+i))
	}
	client := fmt.Sprintf("127.0.0.1:%d", port+3)
	members := make([]*store.Etcd, 3)
	dirs, data := make([]string, 3), []string{t.TempDir(), t.TempDir(), t.TempDir()}
	open := func(i int) error {
		s, err := trust.Open(trust.Options{Dir: dirs[i]})
		if err != nil {
			return err
		}
		cfg := store.EtcdConfig{
			Name: fmt.Sprintf("g%d", i), DataDir: data[i], PeerAddr: fmt.Sprintf("127.0.0.1:%d", port+i),
			InitialCluster: cluster, Identity: s, Logger: slog.New(slog.DiscardHandler),
		}
		if i == 0 {
			cfg.ClientAddr = client
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		members[i], err = store.OpenEtcd(ctx, cfg)
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
	write := func(s store.Store, key string) error {
		_, err := s.Txn(t.Context(), nil, []store.Op{store.Put(key, []byte("v"))})
		return err
	}
	for i, m := range members {
		if err := write(m, fmt.Sprintf("k%d", i)); err != nil {
			t.Errorf("g%d: %v", i, err)
		}
	}
	t.Run("another global server", func(t *testing.T) {
		e, err := store.OpenEtcd(t.Context(), store.EtcdConfig{Endpoints: []string{client}, Identity: ca.Source("global/g9")})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		if err := write(e, "k9"); err != nil {
			t.Error(err)
		}
	})
	strangers := map[string]*tls.Config{
		"no certificate": {InsecureSkipVerify: true}, "no encryption": nil,
	}
	server, foreign := ca.Source("region/a/server/s1"), other.Source("global/g1")
	everybody := identity.Rules{{Kind: identity.Global}}
	strangers["a regional server"], strangers["of another federation"] = server.TLS(everybody), foreign.TLS(everybody)
	strangers["of another federation"].VerifyConnection = nil
	for name, config := range strangers {
		for _, addr := range []string{client, fmt.Sprintf("127.0.0.1:%d", port+1)} {
			if answer, err := request(addr, config); err == nil {
				t.Errorf("%s: %s answers %q", name, addr, answer)
			}
		}
	}
	t.Run("renewed", func(t *testing.T) {
		for i := range 3 {
			if err := trust.Write(dirs[i], ca.Issue(fmt.Sprintf("global/g%d", i))); err != nil {
				t.Fatal(err)
			}
		}
		if err := members[2].Close(); err != nil {
			t.Fatal(err)
		}
		if err := open(2); err != nil {
			t.Fatal(err)
		}
		if err := write(members[2], "renewed"); err != nil {
			t.Error(err)
		}
	})
}

// request sends a request of HTTP/1 and returns the beginning of the response.
func request(addr string, config *tls.Config) (string, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if config != nil {
		config = config.Clone()
		config.NextProtos = []string{"http/1.1"}
		conn = tls.Client(conn, config)
	}
	if _, err := fmt.Fprint(conn, "GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		return "", err
	}
	b := make([]byte, 100)
	n, err := conn.Read(b)
	if strings.HasPrefix(string(b[:n]), "HTTP/1.1 ") {
		return string(b[:n]), nil
	}
	return "", fmt.Errorf("%w: %q", err, b[:n])
}

// TestFrontClosesSilentConnections: a member without identities serves while thousands of connections say
// nothing or send slowly. They are closed.
func TestFrontClosesSilentConnections(t *testing.T) {
	t.Parallel()
	client := fmt.Sprintf("127.0.0.1:%d", freeport.Reserve(t, 1))
	e := openMember(t, func(c *store.EtcdConfig) { c.DataDir, c.ClientAddr = t.TempDir(), client })
	var silent []net.Conn
	begun := time.Now()
	for i := range 600 {
		c, err := net.Dial("tcp", client)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 0 {
			_, _ = c.Write([]byte("PRI * HT"))
		}
		silent = append(silent, c)
	}
	_ = silent[0].SetReadDeadline(begun.Add(guard.Limit)) // after this time it is closed even if it is the only one
	if _, err := silent[0].Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("the oldest of 600 silent connections: %v", err)
	}
	resp, err := http.Get("http://" + client + "/version")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	other, err := store.OpenEtcd(t.Context(), store.EtcdConfig{Endpoints: []string{e.ClientAddr()}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	last := silent[len(silent)-1]
	_ = last.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := last.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("a silent connection after a minute: %v", err)
	}
}

// authority makes certificates of an etcd that is not ours.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.make("ca", nil)
	return a
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// make writes a certificate and its key.
func (a *authority) make(name string, change func(*x509.Certificate)) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign
		c.ExtKeyUsage = nil
		parent, signer = c, key
	}
	if change != nil {
		change(c)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{name + ".pem": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(a.path(file), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// TestOutsideEtcd: a store on an etcd with TLS, client certificates and users opens with the right
// credentials, and says what is wrong with others.
func TestOutsideEtcd(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.make("etcd", nil)
	a.make("nusa", nil)
	ports := freeport.Reserve(t, 2)
	c := embed.NewConfig()
	c.Dir, c.LogLevel, c.LogOutputs = t.TempDir(), "panic", []string{"/dev/null"}
	c.ListenClientUrls = []url.URL{{Scheme: "https", Host: fmt.Sprintf("127.0.0.1:%d", ports)}}
	c.ListenPeerUrls = []url.URL{{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", ports+1)}}
	c.AdvertiseClientUrls, c.AdvertisePeerUrls = c.ListenClientUrls, c.ListenPeerUrls
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.ClientTLSInfo.CertFile, c.ClientTLSInfo.KeyFile = a.path("etcd.pem"), a.path("etcd.key")
	c.ClientTLSInfo.TrustedCAFile, c.ClientTLSInfo.ClientCertAuth = a.path("ca.pem"), true
	server, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	<-server.Server.ReadyNotify()
	right := store.Outside{CAFile: a.path("ca.pem"), CertFile: a.path("nusa.pem"), KeyFile: a.path("nusa.key"), User: "root", PasswordFile: a.path("password")}
	if err := os.WriteFile(right.PasswordFile, []byte("correct\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	setUser(t, a, c.ListenClientUrls[0].String())
	open := func(o store.Outside, endpoint string, within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		e, err := store.OpenEtcd(ctx, store.EtcdConfig{Endpoints: []string{endpoint}, Outside: o, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		defer e.Close()
		_, err = e.Txn(ctx, nil, []store.Op{store.Put("k", []byte("v"))})
		return err
	}
	bare, full := c.ListenClientUrls[0].Host, c.ListenClientUrls[0].String()
	for _, endpoint := range []string{bare, full} {
		if err := open(right, endpoint, time.Minute); err != nil {
			t.Errorf("the right credentials, %s: %v", endpoint, err)
		}
	}
	readable := a.path("readable")
	if err := os.WriteFile(readable, []byte("correct"), 0o644); err != nil {
		t.Fatal(err)
	}
	wrong := a.path("wrong")
	if err := os.WriteFile(wrong, []byte("secret-canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := newAuthority(t)
	for name, o := range map[string]store.Outside{
		"a wrong password":       {CAFile: right.CAFile, CertFile: right.CertFile, KeyFile: right.KeyFile, User: "root", PasswordFile: wrong},
		"a readable password":    {CAFile: right.CAFile, CertFile: right.CertFile, KeyFile: right.KeyFile, User: "root", PasswordFile: readable},
		"no user":                {CAFile: right.CAFile, CertFile: right.CertFile, KeyFile: right.KeyFile},
		"no client certificate":  {CAFile: right.CAFile, User: "root", PasswordFile: right.PasswordFile},
		"another authority":      {CAFile: b.path("ca.pem"), CertFile: right.CertFile, KeyFile: right.KeyFile, User: "root", PasswordFile: right.PasswordFile},
		"no file of authorities": {CAFile: right.KeyFile, CertFile: right.CertFile, KeyFile: right.KeyFile},
		"nothing":                {},
	} {
		err := open(o, bare, 8*time.Second)
		if err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// setUser creates the user root of an etcd, and lets the etcd ask for users.
func setUser(t *testing.T, a *authority, endpoint string) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	pair, err := tls.LoadX509KeyPair(a.path("nusa.pem"), a.path("nusa.key"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, TLS: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}, DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.UserAdd(t.Context(), "root", "correct"); err != nil {
		t.Fatal(err)
	}
	if _, err := client.UserGrantRole(t.Context(), "root", "root"); err != nil {
		t.Fatal(err)
	}
	if _, err := client.AuthEnable(t.Context()); err != nil {
		t.Fatal(err)
	}
}
