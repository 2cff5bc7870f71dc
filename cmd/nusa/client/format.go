package client

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/reason"
	"github.com/nusa-scheduler/nusa/job/doc"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// print shows a message as -o says; show draws the table.
func (c *caller) print(m proto.Message, show func(w io.Writer)) error {
	if c.output == "table" {
		show(c.out)
		return nil
	}
	n, err := messageTree(m)
	if err != nil {
		return err
	}
	return c.printTree(n)
}

func (c *caller) printTree(n *doc.Node) error {
	text := n.JSON()
	if c.output == "yaml" {
		text = n.YAML()
	}
	_, err := c.out.Write(text)
	return err
}

// printLine is print for one message of a stream: JSON on one line, YAML as a
// document.
func (c *caller) printLine(m proto.Message, show func(w io.Writer)) error {
	switch c.output {
	case "json":
		n, err := messageTree(m)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.out, "%s\n", n.Compact())
		return err
	case "yaml":
		c.printf("---\n")
	}
	return c.print(m, show)
}

// messageTree goes through the tree because protojson changes its blanks from
// build to build, on purpose.
func messageTree(m proto.Message) (*doc.Node, error) {
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	docs, err := doc.Read(data, true)
	if err != nil {
		return nil, err
	}
	return docs[0], nil
}

// word is an enumeration's value for people: REASON_RTT_TOO_HIGH of Reason is
// "rtt too high"; "" when unspecified.
func word(e protoreflect.Enum) string {
	v := e.Descriptor().Values().ByNumber(e.Number())
	if v == nil {
		return fmt.Sprintf("unknown (%d)", e.Number())
	}
	zero := string(e.Descriptor().Values().ByNumber(0).Name())
	prefix := strings.TrimSuffix(strings.TrimSuffix(zero, "UNSPECIFIED"), "UNKNOWN")
	if e.Number() == 0 && strings.HasSuffix(zero, "UNSPECIFIED") {
		return ""
	}
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix)), "_", " ")
}

// shortID is how much of an id is shown, and enough to name it.
func shortID(id string) string {
	const length = 8
	return id[:min(len(id), length)]
}

// age is a duration for people: 45s, 12m, 3h20m, 5d4h.
func age(d *durationpb.Duration) string {
	if d == nil {
		return "-"
	}
	return human(d.AsDuration())
}

func human(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 10*time.Second:
		return strconv.FormatFloat(math.Floor(d.Seconds()*10)/10, 'f', -1, 64) + "s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 24*time.Hour:
		return trimZero(d/time.Hour, "h", d%time.Hour/time.Minute, "m")
	}
	const day = 24 * time.Hour
	return trimZero(d/day, "d", d%day/time.Hour, "h")
}

func trimZero(a time.Duration, unit string, b time.Duration, small string) string {
	if b == 0 {
		return fmt.Sprintf("%d%s", a, unit)
	}
	return fmt.Sprintf("%d%s%d%s", a, unit, b, small)
}

// view is what a rendering may depend on besides the message.
type view struct {
	palette
	now time.Time
	// nusa is how hints name the binary.
	nusa string
	// width of the terminal in columns; 0 = there is none.
	width int
}

func (c *caller) view() view {
	v := view{palette: c.style, now: time.Now(), nusa: c.nusa}
	if c.terminal {
		v.width = terminalWidth(c.out)
	}
	return v
}

// since is the age of a wall-clock time of a server, by this machine's clock.
func (v view) since(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return human(v.now.Sub(t.AsTime()))
}

// millis is a round trip for people: 0.4, 7.2, 68.
func millis(d *durationpb.Duration) string {
	ms := float64(d.AsDuration()) / float64(time.Millisecond)
	if ms < 10 {
		return strconv.FormatFloat(ms, 'f', 1, 64)
	}
	return strconv.FormatFloat(ms, 'f', 0, 64)
}

// size is a number of bytes for people, to two digits: 1.5 GiB.
func size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	f, i := float64(n), 0
	for f >= 1000 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	if i == 0 || f >= 10 {
		return fmt.Sprintf("%.0f %s", f, units[i])
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") + " " + units[i]
}

// cores is exact: an ask of 1m is 0.001, not nothing.
func cores(milli int64) string { return strconv.FormatFloat(float64(milli)/1000, 'f', -1, 64) }

func percent(f float64) string { return fmt.Sprintf("%.0f%%", f*100) }

func rate(f float64) string { return size(int64(f)) + "/s" }

// number has one decimal, or two below 10, none of them an idle nought.
func number(f float64) string {
	decimals := 1
	if math.Abs(f) < 10 {
		decimals = 2
	}
	text := strconv.FormatFloat(f, 'f', decimals, 64)
	text = strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
	if text == "-0" {
		return "0"
	}
	return text
}

func count[T int | int32](n T) string { return strconv.Itoa(int(n)) }

// plural counts things: 1 instance, 2 instances.
func plural[T int | int32](n T, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// jobName is how a job is named on the command line.
func jobName(namespace, name, region string) string {
	full := namespace + "/" + name
	if region != "" {
		full += "@" + region
	}
	return full
}

// why joins a reason and its message for one cell; some messages say the reason
// themselves.
func why(r nusav1.Reason, message string) string {
	message = plain(message)
	// "it exited" and "task t exited with code 7".
	if text := strings.TrimPrefix(reason.Text(r), "it "); text != "" && strings.Contains(message, text) {
		return message
	}
	return reason.WithMessage(r, message)
}
