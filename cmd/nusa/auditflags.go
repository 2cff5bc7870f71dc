package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/global/deadletters"
	"github.com/nusa-scheduler/nusa/global/events"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	"github.com/nusa-scheduler/nusa/security/auditsink"
)

// eventFlags adds the flags of the durable events and of webhooks to a role. The returned function
// reads the files that the flags name.
func eventFlags(f *pflag.FlagSet, retention *time.Duration, mib *int64, policy *webhook.Policy) (read func() error) {
	f.Var(cli.NewDuration(retention, func(d time.Duration) error {
		if d < time.Minute {
			return errors.New("is below 1m")
		}
		return nil
	}), "event-retention", "time for which events are kept, such as 30d (default 7d); many events are kept for a shorter time")
	f.Int64Var(mib, "event-size", events.DefaultBytes>>20, "MiB that the stored events may take, and at most a sixteenth of the store's quota")
	return webhookFlags(f, policy)
}

// letterFlags adds the flags of dead letters to a role.
func letterFlags(f *pflag.FlagSet, retention *time.Duration, alarm *int) {
	f.Var(cli.NewDuration(retention, func(d time.Duration) error {
		if d < time.Minute {
			return errors.New("is below 1m")
		}
		return nil
	}), "deadletter-retention", "time for which dead letters are kept, such as 90d (default 30d); the oldest of more than 10,000 are forgotten")
	f.IntVar(alarm, "deadletter-alarm", deadletters.DefaultAlarm, "more open dead letters than this are an alarm; -1 = no alarm")
}

// webhookFlags adds the flags of webhooks to a role.
func webhookFlags(f *pflag.FlagSet, policy *webhook.Policy) (read func() error) {
	var allow []string
	var caFile string
	f.StringSliceVar(&allow, "webhook-allow-private", nil, "private networks that webhooks, buses and intakes may reach, such as 10.1.0.0/16 (default: none)")
	f.BoolVar(&policy.AllowHTTP, "webhook-allow-http", false, "let webhooks, buses and intakes connect without TLS")
	f.StringVar(&caFile, "webhook-ca-file", "", "file with the authorities of webhook endpoints and brokers, in PEM (default: those of the host)")
	return func() error {
		for _, text := range allow {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return fmt.Errorf("--webhook-allow-private: %w: give ADDRESS/BITS", err)
			}
			policy.AllowPrivate = append(policy.AllowPrivate, p)
		}
		if caFile == "" {
			return nil
		}
		text, err := os.ReadFile(caFile)
		if err != nil {
			return fmt.Errorf("--webhook-ca-file: %w", err)
		}
		policy.Roots = x509.NewCertPool()
		if !policy.Roots.AppendCertsFromPEM(text) {
			return fmt.Errorf("--webhook-ca-file: %s has no certificate in PEM", caFile)
		}
		return nil
	}
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
