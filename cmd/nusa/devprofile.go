package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/profile"
	"github.com/nusa-scheduler/nusa/cmd/nusa/dev"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// profiles are the profiles that a federation has written, by address.
type profiles map[string]profile.Profile

// writeProfiles lets the commands in other terminals find the identity of an operator. Without a
// profile they need --identity, and say prints that. A federation without encryption removes the
// profiles that an earlier one has left.
func writeProfiles(f dev.Federation, say func(string)) profiles {
	out := profiles{}
	addrs := append([]string{f.Addr}, slices.Sorted(maps.Values(f.Regions))...)
	if f.Identity == "" {
		for _, addr := range addrs {
			if left, err := profile.Read(addr); err == nil && left != nil && left.Temporary != "" {
				_ = profile.Remove(addr, *left) // the client names a profile that it cannot use
			}
		}
		return nil
	}
	p, err := profileOf(f)
	for _, addr := range addrs {
		if err == nil {
			err = profile.Write(addr, p)
		}
		if err == nil {
			out[addr] = p
		}
	}
	if err != nil {
		say(fmt.Sprintf("nusa: other commands do not find their identity (%v): run in their terminals: export NUSA_IDENTITY=%s", err, f.Identity))
	}
	return out
}

// profileOf returns the profile with the operator of a federation.
func profileOf(f dev.Federation) (p profile.Profile, err error) {
	p.Temporary = "nusa dev in " + f.DataDir
	for name, to := range map[string]*[]byte{trust.RootsFile: &p.Roots, trust.CertFile: &p.Cert, trust.KeyFile: &p.Key} {
		*to, err = os.ReadFile(filepath.Join(f.Identity, name))
		if err != nil {
			return p, err
		}
	}
	return p, nil
}

// remove removes the profiles that are still those of the federation.
func (p profiles) remove(say func(string)) {
	for addr, one := range p {
		if err := profile.Remove(addr, one); err != nil {
			say("nusa: " + err.Error())
		}
	}
}
