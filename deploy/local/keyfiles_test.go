//go:build integration

package local_test

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/leftover"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	"github.com/nusa-scheduler/nusa/security/pki"
)

// writeRoots writes the files of --ca-cert and --ca-key.
func (j *joined) writeRoots(roots ...*pki.Authority) (cert, key string) {
	j.Helper()
	cert, key = filepath.Join(j.dir, "ca.pem"), filepath.Join(j.dir, "ca-key.pem")
	var certs, keys []byte
	for _, r := range roots {
		text, err := pki.EncodeKey(r.Key)
		if err != nil {
			j.Fatal(err)
		}
		certs, keys = append(certs, pki.EncodeCertificates(r.Cert)...), append(keys, text...)
	}
	for path, text := range map[string][]byte{cert: certs, key: keys} {
		if err := os.WriteFile(path+".new", text, 0o600); err != nil {
			j.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			j.Fatal(err)
		}
	}
	return cert, key
}

// TestRootOfFilesRotates: three global servers with an etcd member each, and with the root in files, change
// to another root. None of them has to be restarted. The status names those whose etcd trusts the earlier
// root until a restart.
func TestRootOfFilesRotates(t *testing.T) {
	t.Parallel()
	bin, err := filepath.Abs("../../bin/nusa")
	if err != nil {
		t.Fatal(err)
	}
	j := &joined{T: t, dir: t.TempDir(), bin: bin, port: freeport.Reserve(t, ports)}
	leftover.Nothing(t, j.dir)
	env := pki.Env{Now: time.Now(), Rand: rand.Reader}
	first, err := pki.NewRoot("", env)
	if err != nil {
		t.Fatal(err)
	}
	second, err := first.NextRoot(env)
	if err != nil {
		t.Fatal(err)
	}
	cert, key := j.writeRoots(first)
	var members []string
	for i := range 3 {
		members = append(members, fmt.Sprintf("g%d=%s", i+1, j.addr(20+i)))
	}
	global := func(i int) func() {
		return j.start(fmt.Sprintf("g%d", i), nil, "global", "--secure", "--ca-cert", cert, "--ca-key", key,
			"--grpc-addr", j.addr(i-1), "--http-addr", "-", "--etcd-initial-cluster", strings.Join(members, ","))
	}
	kills := []func(){global(1), global(2), global(3)}
	j.until("g3", "server", "list")
	j.until("the root was never changed", "operator", "keys", "ca", "status")
	ca := func(args ...string) []string { return append([]string{"operator", "keys", "ca"}, args...) }

	j.refused("append both it and its key to the files", ca("rotate", "--phase", "trust")...)
	j.writeRoots(first, second)
	j.must(ca("rotate", "--phase", "trust")...)
	j.until("members: 3 converged, 0 not", ca("status")...)
	j.must(ca("rotate", "--phase", "issue")...)
	j.until("members: 3 converged, 0 not", ca("status")...)

	// The etcd of g1 and g2 has the first root only. They accept the certificate of g3 after its restart.
	kills[2]()
	kills[2] = global(3)
	j.logged("g3", "global server is ready")
	j.until("members: 3 converged, 0 not", ca("status")...)
	j.must(ca("rotate", "--phase", "distrust")...)
	j.until("members: 3 converged, 0 not", ca("status")...)
	j.writeRoots(second)
	for _, name := range []string{"g1", "g2", "g3"} {
		j.until("global server "+name, ca("status")...) // its etcd still trusts the first root
	}
	for i, kill := range kills { // one after the other, with the new root only
		kill()
		global(i + 1)
		j.until("members: 3 converged, 0 not", ca("status")...)
	}
	j.eventually(time.Second, func() error {
		out, err := j.nusa(ca("status")...)
		if err != nil || strings.Contains(out, "until this server is restarted") || !strings.Contains(out, "members: 3 converged, 0 not") {
			return fmt.Errorf("after a restart of all: %v, %s", err, out)
		}
		return nil
	})
	if all, issuer := j.roots("g2"); len(all) != 1 || all[0] != pki.Fingerprint(second.Cert) || issuer != all[0] {
		t.Errorf("g2 trusts %v, and its certificate is of %s", all, issuer)
	}
}
