package main

import (
	"os"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/profile"
	"github.com/nusa-scheduler/nusa/cmd/nusa/dev"
	"github.com/nusa-scheduler/nusa/security/pkitest"
)

// TestProfilesOfAFederation: the addresses of a federation have profiles while it runs. A federation
// without identities removes profiles that another one has left there, and no others.
func TestProfilesOfAFederation(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	const global, region = "127.0.0.1:20000", "127.0.0.1:20100"
	f := dev.Federation{Addr: global, Regions: map[string]string{"a": region}, DataDir: "d", Identity: pkitest.New(t).Dir("operator/local")}
	say := func(text string) { t.Error(text) }
	count := func() (n int) {
		for _, addr := range []string{global, region} {
			p, err := profile.Read(addr)
			if err != nil {
				t.Fatal(err)
			}
			if p.HasIdentity() {
				n++
			}
		}
		return n
	}
	written := writeProfiles(f, say)
	if n := count(); n != 2 {
		t.Errorf("%d profiles while the federation runs", n)
	}
	written.remove(say)
	if n := count(); n != 0 {
		t.Errorf("%d profiles after its end", n)
	}
	writeProfiles(f, say) // and is killed
	p, err := profile.Read(region)
	if err != nil {
		t.Fatal(err)
	}
	p.Temporary = ""
	if err := profile.Write(region, *p); err != nil {
		t.Fatal(err)
	}
	f.Identity = ""
	writeProfiles(f, say).remove(say)
	if p, err := profile.Read(region); err != nil || count() != 1 || p.Temporary != "" {
		t.Errorf("%d profiles beside a federation without identities, %v", count(), err)
	}
}

// TestNoPlaceForProfiles: without a folder for profiles the federation prints which identity to use.
func TestNoPlaceForProfiles(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("HOME", "")
	dir := pkitest.New(t).Dir("operator/local")
	var said strings.Builder
	say := func(text string) { said.WriteString(text) }
	writeProfiles(dev.Federation{Addr: "127.0.0.1:20000", Identity: dir}, say).remove(say)
	if !strings.HasSuffix(said.String(), "export NUSA_IDENTITY="+dir) {
		t.Error(said.String())
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}
