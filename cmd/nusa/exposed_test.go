package main

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"
)

// TestOpenListenersAreRefused: a listener that other machines reach needs an identity, and gossip needs
// a key, unless --insecure says that everybody may come.
func TestOpenListenersAreRefused(t *testing.T) {
	for line, want := range map[string]string{ // the flags of the refused listeners
		"global --data-dir d":                                                                                  "",
		"global --data-dir d --bind ::1":                                                                       "",
		"global --data-dir d --bind 10.0.0.5":                                                                  "",
		"global --data-dir d --bind 10.0.0.5 --etcd-endpoints 10.0.0.9:1":                                      "",
		"global --data-dir d --bind 10.0.0.5 --etcd-client-addr 10.0.0.5:1":                                    "etcd-client-addr",
		"global --data-dir d --bind 10.0.0.5 --etcd-client-addr 10.0.0.5:1 --ca-cert c --ca-key k":             "",
		"global --data-dir d --bind 10.0.0.5 --name a --etcd-initial-cluster a=10.0.0.5:1,b=10.0.0.6:1":        "etcd-peer-addr",
		"global --data-dir d --name a --etcd-initial-cluster a=10.0.0.5:1,b=10.0.0.6:1":                        "etcd-peer-addr",
		"global --data-dir d --name a --etcd-initial-cluster a=10.0.0.5:1,b=10.0.0.6:1 --ca-cert c --ca-key k": "",
		"global --data-dir d --name a --etcd-initial-cluster a=127.0.0.1:1,b=127.0.0.1:2":                      "",
		"global --data-dir d --bind 10.0.0.5 --identity g":                                                     "",
		"global --data-dir d --bind 10.0.0.5 --http-addr - --insecure":                                         "",
		"regional --data-dir d --region a --bind 10.0.0.5":                                                     "gossip-addr grpc-addr http-addr raft-addr",
		"regional --data-dir d --region a --bind 10.0.0.5 --identity s":                                        "gossip-addr",
		"regional --data-dir d --region a --bind 10.0.0.5 --gossip-key-file k --identity s":                    "",
		"global --data-dir d --bind 10.0.0.5 --identity-socket unix:///s":                                      "",
		"regional --data-dir d --region a --bind 10.0.0.5 --identity-socket unix:///s":                         "gossip-addr",
		"agent --data-dir d --region a --servers h:1 --bind 10.0.0.5 --identity-socket unix:///s":              "",
		"regional --data-dir d --region a --bind 10.0.0.5 --join-token-file t":                                 "",
		"regional --data-dir d --region a --probe-addr 10.0.0.5:1":                                             "",
		"agent --data-dir d --region a --servers h:1 --bind 10.0.0.5":                                          "http-addr",
		"agent --data-dir d --region a --servers h:1 --bind 10.0.0.5 --http-addr -":                            "",
	} {
		root := newRoot()
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		root.SetArgs(append([]string{"config", "validate"}, strings.Fields(line)...))
		err := root.ExecuteContext(t.Context())
		var got []string
		if err != nil {
			for fault := range strings.Lines(err.Error()) {
				if flag, rest, ok := strings.Cut(strings.TrimPrefix(fault, "--"), " "); ok && strings.Contains(rest, "it is not encrypted: give --") {
					got = append(got, flag)
				}
			}
			if !strings.Contains(err.Error(), "--insecure (or NUSA_INSECURE=true) allows it") {
				t.Errorf("%s: %v", line, err)
			}
		}
		if strings.Join(got, " ") != want || (err == nil) != (want == "") {
			t.Errorf("%s: refused are %q, want %q: %v", line, got, want, err)
		}
	}
	t.Setenv("NUSA_INSECURE", "true")
	if _, err := effective(t, "global --data-dir d --bind 10.0.0.5"); err != nil {
		t.Errorf("NUSA_INSECURE: %v", err)
	}
}

// TestGossipWithoutKeys: a server that has joined and got no keys does not gossip with other machines.
func TestGossipWithoutKeys(t *testing.T) {
	for _, c := range []struct {
		address, file string
		insecure, ok  bool
	}{
		{"10.0.0.5:1", "", false, false}, {"10.0.0.5:1", "keys", false, true}, {"10.0.0.5:1", "", true, true}, {"127.0.0.1:1", "", false, true},
	} {
		if err := checkGossip(c.address, c.file, c.insecure); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestOpenListenersAreInTheLog: with --insecure the log has each such listener at the start.
func TestOpenListenersAreInTheLog(t *testing.T) {
	for line, want := range map[string]string{
		"--bind 10.0.0.5 --insecure": "--grpc-addr 10.0.0.5:7600: other machines reach it",
		"--bind 10.0.0.5":            "",
		"":                           "",
	} {
		var log bytes.Buffer
		cmd := globalCommand()
		if err := cmd.ParseFlags(append([]string{"--data-dir=d"}, strings.Fields(line)...)); err != nil {
			t.Fatal(err)
		}
		if err := applyBind(cmd.Flags()); err != nil {
			t.Fatal(err)
		}
		warnExposed(slog.New(slog.NewTextHandler(&log, nil)), cmd.Flags())()
		if !strings.Contains(log.String(), want) || (want == "") != (log.Len() == 0) {
			t.Errorf("%q: %s", line, log.String())
		}
	}
}
