//go:build integration

package incus

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lxc/incus/v6/shared/api"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/internal/freeport"
)

// certificate makes the files of a client. mode is the mode of the key file.
func certificate(t *testing.T, mode os.FileMode) (cert, key string, der []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "agent"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err = x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	must(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	must(t, err)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	must(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644))
	must(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), mode))
	must(t, os.Chmod(key, mode))
	return cert, key, der
}

// TestHTTPS: the driver works over the network with certificates of the client and of the
// daemon. If the daemon does not trust the client, the fingerprint says what to do.
func TestHTTPS(t *testing.T) {
	i := real(t)
	port := freeport.Reserve(t, 1)
	must(t, i.Ask(t.Context(), http.MethodPatch, "/1.0", map[string]any{"config": map[string]string{"core.https_address": fmt.Sprintf("127.0.0.1:%d", port)}}, nil))
	t.Cleanup(func() {
		_ = i.Ask(limited(t, time.Minute), http.MethodPatch, "/1.0", map[string]any{"config": map[string]string{"core.https_address": ""}}, nil)
	})
	cert, key, der := certificate(t, 0o600)
	trust, err := LoadTLS(cert, key, filepath.Join(i.Dir, "server.crt"))
	must(t, err)
	init := slim(t)
	d, err := New(Config{Dir: t.TempDir(), Address: fmt.Sprintf("https://127.0.0.1:%d", port), TLS: trust, Init: init})
	must(t, err)
	t.Cleanup(d.Close)
	if f := d.Fingerprint(t.Context()); f.Healthy || !strings.Contains(f.Message, "does not trust this client") {
		t.Errorf("before the daemon trusts it: %+v", f)
	}
	must(t, i.Ask(t.Context(), http.MethodPost, "/1.0/certificates", api.CertificatesPost{CertificatePut: api.CertificatePut{
		Name: "agent", Type: "client", Certificate: base64.StdEncoding.EncodeToString(der)}}, nil))
	if f := d.Fingerprint(t.Context()); !f.Healthy {
		t.Fatalf("it is trusted, and says %s", f.Message)
	}
	tk, image := task(t, d, "https", counted()), task(t, d, "https-image", plain())
	must(t, d.Start(limited(t, time.Minute), tk))
	must(t, d.Start(limited(t, time.Minute), image))
	end(t, tk)
	if st, err := d.Wait(limited(t, time.Minute), tk.ID); err != nil || st.ExitCode != 9 {
		t.Errorf("it ended as %+v: %v", st, err)
	}
	// Events use the same connection settings.
	ended := make(chan driver.Status, 1)
	go func() {
		st, _ := d.Wait(t.Context(), image.ID)
		ended <- st
	}()
	must(t, i.Ask(t.Context(), http.MethodPut, instancePath(instanceName(d.owner, image.ID))+"/state", api.InstanceStatePut{Action: "stop", Force: true, Timeout: -1}, nil))
	select {
	case <-ended:
	case <-time.After(rereadEvery / 2):
		t.Error("no event reported the end")
	}
	stranger, err := New(Config{Dir: t.TempDir(), Address: d.cfg.Address, Init: init})
	must(t, err)
	defer stranger.Close()
	if f := stranger.Fingerprint(t.Context()); f.Healthy || !strings.Contains(f.Message, "certificate") {
		t.Errorf("without the daemon's certificate: %+v", f)
	}
	_, open, _ := certificate(t, 0o644)
	if _, err := LoadTLS(cert, open, ""); err == nil || !strings.Contains(err.Error(), "other users of this host can read") {
		t.Errorf("a key that others can read: %v", err)
	}
}
