package federation

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nusa-scheduler/nusa/bench/federation/parts"
	"github.com/nusa-scheduler/nusa/global"
)

// TestMain runs the tests. With the arguments of `nusa global`, `nusa bench
// federation-etcd` or `nusa bench federation-parts` it is the program that the tests start.
func TestMain(m *testing.M) {
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "global":
		err = serveGlobal(os.Args[2:])
	case len(os.Args) > 3 && os.Args[1] == "bench" && os.Args[2] == "federation-parts":
		err = serveParts(os.Args[3], os.Args[4:])
	case len(os.Args) > 3 && os.Args[1] == "bench":
		err = etcdAlone(os.Args[3], os.Args[4:])
	default:
		goleak.VerifyTestMain(m)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serveGlobal serves `nusa global` with the flags that a measurement uses.
func serveGlobal(args []string) error {
	var level string
	cfg := global.Config{ReportInterval: time.Second}
	f := flag.NewFlagSet("global", flag.ContinueOnError)
	f.StringVar(&cfg.Name, "name", "", "")
	f.StringVar(&cfg.DataDir, "data-dir", "", "")
	f.StringVar(&cfg.GRPCAddr, "grpc-addr", "", "")
	f.StringVar(&cfg.HTTPAddr, "http-addr", "", "")
	f.StringVar(&cfg.Etcd.ClientAddr, "etcd-client-addr", "", "")
	f.StringVar(&cfg.Etcd.PeerAddr, "etcd-peer-addr", "", "")
	f.StringVar(&level, "log-level", "", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	return global.Run(context.Background(), cfg)
}

func serveParts(dir string, args []string) error {
	cfg := parts.Config{Dir: dir}
	f := flag.NewFlagSet("federation-parts", flag.ContinueOnError)
	f.StringVar(&cfg.GRPCAddr, "grpc-addr", "", "")
	f.StringVar(&cfg.PeerAddr, "etcd-peer-addr", "", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	return parts.Run(context.Background(), cfg)
}

func etcdAlone(dir string, args []string) error {
	var jobs int
	var d time.Duration
	var read bool
	f := flag.NewFlagSet("federation-etcd", flag.ContinueOnError)
	f.IntVar(&jobs, "jobs", 0, "")
	f.DurationVar(&d, "for", 0, "")
	f.BoolVar(&read, "read", false, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	if read {
		r, err := ReadAlone(context.Background(), dir)
		return errors.Join(err, json.NewEncoder(os.Stdout).Encode(r))
	}
	r, err := EtcdAlone(context.Background(), dir, jobs, d)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}
