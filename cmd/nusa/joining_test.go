package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/security/member"
)

// TestUnclearIdentities: a role does not start if it is unclear which identity it is to have, and
// never without encryption because a file is missing.
func TestUnclearIdentities(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("nusa1.x"), 0o644); err != nil {
		t.Fatal(err)
	}
	damaged := t.TempDir()
	if err := os.Mkdir(filepath.Join(damaged, identityFolder), 0o700); err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]struct {
		r       role
		servers []string
	}{
		"give one of them":                     {r: role{identity: "g1", tokenFile: token, dataDir: t.TempDir()}},
		"has no certificate (cert.pem)":        {r: role{dataDir: damaged}},
		"needs servers":                        {r: role{tokenFile: token, dataDir: t.TempDir()}},
		"can be read by other users than its ": {r: role{tokenFile: token, dataDir: t.TempDir()}, servers: []string{"127.0.0.1:1"}},
	} {
		cmd := new(cobra.Command)
		cmd.SetContext(t.Context())
		_, _, err := c.r.joined(cmd, member.Config{Servers: c.servers}, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if source, _, err := (&role{dataDir: t.TempDir()}).joined(new(cobra.Command), member.Config{}, nil); source != nil || err != nil {
		t.Errorf("without an identity: %v, %v", source, err)
	}
}
