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
		"global --data-dir d":                                                               "",
		"global --data-dir d --bind ::1":                                                    "",
		"global --data-dir d --bind 10.0.0.5":                                               "etcd-peer-addr grpc-addr http-addr",
		"global --data-dir d --bind 10.0.0.5 --etcd-endpoints 10.0.0.9:1":                   "grpc-addr http-addr",
		"global --data-dir d --bind 10.0.0.5 --etcd-client-addr 10.0.0.5:1":                 "etcd-client-addr etcd-peer-addr grpc-addr http-addr",
		"global --data-dir d --bind 10.0.0.5 --identity g":                                  "",
		"global --data-dir d --bind 10.0.0.5 --http-addr - --insecure":                      "",
		"global --data-dir d --grpc-addr host.example:1":                                    "grpc-addr",
		"global --data-dir d --grpc-addr :7600 --advertise h:1":                             "grpc-addr",
		"regional --data-dir d --region a --bind 10.0.0.5":                                  "gossip-addr grpc-addr http-addr raft-addr",
		"regional --data-dir d --region a --bind 10.0.0.5 --identity s":                     "gossip-addr",
		"regional --data-dir d --region a --bind 10.0.0.5 --gossip-key-file k --identity s": "",
		"regional --data-dir d --region a --probe-addr 10.0.0.5:1":                          "",
		"agent --data-dir d --region a --servers h:1 --bind 10.0.0.5":                       "http-addr",
		"agent --data-dir d --region a --servers h:1 --bind 10.0.0.5 --http-addr -":         "",
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

// TestOpenListenersAreInTheLog: with --insecure the log has each such listener at the start.
func TestOpenListenersAreInTheLog(t *testing.T) {
	for line, want := range map[string]string{
		"--bind 10.0.0.5 --insecure": "--grpc-addr 10.0.0.5:7600: other machines reach it",
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
