package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/security/member"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/trust"
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

// TestIdentitySocketIsTheOnlySource: --identity-socket is refused with another source of an identity, and
// if it names no socket.
func TestIdentitySocketIsTheOnlySource(t *testing.T) {
	const global, member = "global --data-dir d --identity-socket unix:///s", "agent --data-dir d --region a --servers h:1 --identity-socket unix:///s"
	for line, want := range map[string]string{
		global:                             "",
		member:                             "",
		global + " --identity i":           "--identity-socket and --identity: give one of them",
		global + " --secure":               "--identity-socket and --secure: give one of them",
		global + " --ca-cert c --ca-key k": "--identity-socket and --ca-cert: give one of them",
		member + " --identity i":           "--identity-socket and --identity: give one of them",
		member + " --join-token-file t":    "--identity-socket and --join-token-file: give one of them",
		member + " --root-hash 00":         "--identity-socket and --root-hash: give one of them",
		"global --data-dir d --identity-socket /run/agent.sock": "write it as unix:///run/spire/agent.sock",
	} {
		_, err := effective(t, line)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	t.Setenv(tokenVariable, "nusa1.x")
	if _, err := effective(t, member); err == nil || !strings.Contains(err.Error(), "NUSA_JOIN_TOKEN: give one of them") {
		t.Errorf("with a token in the environment: %v", err)
	}
	if _, err := effective(t, global); err != nil {
		t.Errorf("a global server needs no token: %v", err)
	}
}

// TestIdentitySocketKeepsTheIdentityOfTheFederation: a global server that has an identity of the federation
// gets none of a Workload API, because the other members would refuse that.
func TestIdentitySocketKeepsTheIdentityOfTheFederation(t *testing.T) {
	r := role{dataDir: t.TempDir(), identitySocket: "unix:///s"}
	cmd := globalCommand()
	if c, err := new(secureFlags).config(&r, cmd.Flags()); c != nil || err != nil {
		t.Errorf("a new server: %v, %v", c, err)
	}
	if err := trust.Write(filepath.Join(r.dataDir, identityFolder), pkitest.New(t).Issue("global/g1")); err != nil {
		t.Fatal(err)
	}
	if _, err := new(secureFlags).config(&r, cmd.Flags()); err == nil || !strings.Contains(err.Error(), "leave --identity-socket (or NUSA_IDENTITY_SOCKET) out") {
		t.Error(err)
	}
}
