package main

import (
	"github.com/spf13/pflag"

	"github.com/nusa-scheduler/nusa/security/gate"
)

// defaultCallRate is far above what one person or program needs, and below what a server can serve.
const defaultCallRate = 10_000

// bindLimits adds the flags that bound the calls of each operator and access token.
func bindLimits(f *pflag.FlagSet, l *gate.Limits) {
	f.Float64Var(&l.Calls, "call-rate", defaultCallRate, "most calls a second of each operator and access token, twice as many at once; 0: not bounded")
	f.Float64Var(&l.Submits, "submit-rate", 0, "most submits and plans of jobs a second of each operator and access token, twice as many at once; 0: not bounded")
}
