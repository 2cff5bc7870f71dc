package eventlog

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds of the texts of an event, in bytes. Longer texts are cut.
const maxType, maxSubject, maxMessage = 64, 512, 2048

// Event is one thing that happened.
type Event struct {
	// Number is the position in the log. 0: the event is not durable.
	Number                 uint64
	At                     time.Time
	Type, Subject, Message string
	Namespace, Region      string
}

// Draft is an event without a number. Its message is formatted later, so nobody may change Text and
// Args after a Draft is made.
type Draft struct {
	At            time.Time
	Type, Subject string
	// Region is the region that the event is about, if Place does not return it.
	Region string
	// Text is the message. Nil: Format and Args are.
	Text   fmt.Stringer
	Format string
	Args   []any
}

// message formats the message of a draft.
func (d *Draft) message() string {
	if d.Text != nil {
		return d.Text.String()
	}
	return fmt.Sprintf(d.Format, d.Args...)
}

// Event formats a draft. It cuts texts that are too long.
func (d *Draft) Event() Event {
	e := Event{At: d.At, Type: bounded(d.Type, maxType), Subject: bounded(d.Subject, maxSubject), Message: bounded(d.message(), maxMessage)}
	e.Namespace, e.Region = Place(e.Type, e.Subject)
	if d.Region != "" {
		e.Region = bounded(d.Region, maxSubject)
	}
	return e
}

// Size returns about how many bytes a draft takes in a record, as a bound for the usual case.
func (d *Draft) Size() int { return len(d.Subject) + len(d.Type) + len(d.Region) + 128 }

// bounded returns valid UTF-8 of at most this many bytes.
func bounded(s string, most int) string {
	if len(s) > most {
		for most > 0 && !utf8.RuneStart(s[most]) {
			most--
		}
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "\uFFFD"[:0])
}

// Place returns the namespace and the region of an event, as its type and its subject show them. The
// subject of an event about a job is "namespace/job", and "namespace/job@region" for a job of one
// region. That of an event about a reservation or a spare is "namespace/id". The subject of an event about a
// region begins with the region's name.
func Place(kind, subject string) (namespace, region string) {
	family, _, _ := strings.Cut(kind, ".")
	switch family {
	case "job", "slot", "instance", "latency", "reservation", "spare", "schedule", "rollout", "workflow", "deadletter":
		namespace, rest, named := strings.Cut(subject, "/")
		if !named {
			return "", ""
		}
		_, region, _ = strings.Cut(rest, "@")
		return namespace, region
	case "region":
		return "", subject
	case "node":
		region, _, _ = strings.Cut(subject, "/")
		return "", region
	}
	return "", ""
}

// Size returns about how many bytes an event takes in a record, as an upper bound.
func (e *Event) Size() int {
	return perEvent + len(e.Type) + len(e.Subject) + len(e.Message) + len(e.Region) + 4*3
}

// Proto returns the message of an event of a log. token is the token of the event.
func (e *Event) Proto(log, token string) *nusav1.Event {
	out := &nusav1.Event{
		Token: token, Time: timestamppb.New(e.At), Type: e.Type, Subject: e.Subject, Message: e.Message,
		Namespace: e.Namespace, Region: e.Region,
	}
	if e.Number > 0 {
		out.Number, out.Log = e.Number, log
	}
	return out
}
