package main

import (
	"errors"
	"time"

	"github.com/spf13/pflag"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/global/events"
	"github.com/nusa-scheduler/nusa/security/auditsink"
)

// eventFlags adds the flags of the durable events to a role.
func eventFlags(f *pflag.FlagSet, retention *time.Duration, mib *int64) {
	f.Var(cli.NewDuration(retention, func(d time.Duration) error {
		if d < time.Minute {
			return errors.New("is below 1m")
		}
		return nil
	}), "event-retention", "time for which events are kept, such as 30d (default 7d); many events are kept for a shorter time")
	f.Int64Var(mib, "event-size", events.DefaultBytes>>20, "MiB that the stored events may take, and at most a sixteenth of the store's quota")
}

// auditFlags adds the flags of the audit trail to a role.
func auditFlags(f *pflag.FlagSet, retention *time.Duration, sink *auditsink.Config) {
	f.Var(cli.NewDuration(retention, func(d time.Duration) error {
		if d < time.Hour {
			return errors.New("is below 1h")
		}
		return nil
	}), "audit-retention", "time for which entries of the audit trail are kept, such as 30d (default 30d); a full trail keeps less")
	f.StringVar(&sink.File, "audit-file", "", "file to which entries of the audit trail are also appended, as lines of JSON; it may be renamed")
	f.StringVar(&sink.Syslog, "audit-syslog", "", "syslog server that also gets entries of the audit trail: HOST:PORT (TCP), or unix:/dev/log")
}
