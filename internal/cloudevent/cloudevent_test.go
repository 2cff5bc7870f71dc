package cloudevent

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func event() *nusav1.Event {
	return &nusav1.Event{
		Time: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)), Type: "job.submitted", Subject: "pay/shop",
		Message: `version "3" <of> 5`, Number: 42, Log: "f1", Namespace: "pay",
	}
}

func TestEncode(t *testing.T) {
	want := `{"specversion":"1.0","id":"f1-42","source":"/nusa/logs/f1","type":"nusa.job.submitted","subject":"pay/shop",` +
		`"time":"2026-01-02T03:04:05.000006Z","datacontenttype":"application/json",` +
		`"data":{"message":"version \"3\" \u003cof\u003e 5","namespace":"pay","number":42}}`
	if got := string(Of(event()).JSON()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	e := event()
	e.Number = 0
	if got := OfID("test-1", e); got.ID != "test-1" || got.Data.Number != 0 {
		t.Errorf("%+v", got)
	}
}

// FuzzEncode: the encoding of every event is valid JSON that keeps the event's texts.
func FuzzEncode(f *testing.F) {
	f.Add("job.submitted", "pay/shop", "text", uint64(1))
	f.Add("a", "\xff", "\x00\u2028</script>", uint64(1<<63))
	f.Fuzz(func(t *testing.T, kind, subject, message string, n uint64) {
		out := Of(&nusav1.Event{Type: kind, Subject: subject, Message: message, Number: n, Log: "l"}).JSON()
		var back Envelope
		if err := json.Unmarshal(out, &back); err != nil {
			t.Fatal(err)
		}
		if back.Data.Number != n || back.Data.Message != strings.ToValidUTF8(message, "\uFFFD") || back.Subject != strings.ToValidUTF8(subject, "\uFFFD") {
			t.Fatalf("%s", out)
		}
	})
}

func TestFilters(t *testing.T) {
	for _, c := range []struct {
		types, namespaces string
		where             string
		want              bool
	}{
		{"", "", "", true},
		{"job.submitted", "pay", "", true},
		{"job.*", "", "", true},
		{"*", "", "", true},
		{"slot.*,job.stopped", "", "", false},
		{"job.sub", "", "", false},
		{"", "shop", "", false},
		{"", "shop,pay", `event.number == 42`, true},
		{"job.*", "pay", `event.message.contains("9")`, false},
	} {
		f, err := NewFilter(split(c.types), split(c.namespaces), c.where)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if got, err := f.Match(event()); got != c.want || err != nil {
			t.Errorf("%+v: %t, %v", c, got, err)
		}
	}
	if ok, err := new(Filter).Match(event()); !ok || err != nil {
		t.Errorf("the zero filter: %t, %v", ok, err)
	}
	f, err := NewFilter(nil, nil, `event.subject.split("/")[5] == "x"`)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := f.Match(event()); ok || err == nil {
		t.Errorf("an expression that fails: %t, %v", ok, err)
	}
}

func TestBadFilters(t *testing.T) {
	for _, c := range []struct {
		types, namespaces []string
		where, want       string
	}{
		{[]string{"job.submitted", "job*"}, nil, "", "types[1]"},
		{[]string{"*.lost"}, nil, "", "types[0]"},
		{[]string{""}, nil, "", "types[0]"},
		{[]string{"nusa.job.submitted"}, nil, "", "leave out the prefix"},
		{make([]string, MaxTypes+1), nil, "", "the limits are"},
		{nil, []string{""}, "", "namespaces[0]"},
		{nil, nil, "event.x", "column 6"},
		{nil, nil, strings.Repeat("x", MaxExpression+1), "the limit is"},
	} {
		if _, err := NewFilter(c.types, c.namespaces, c.where); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40v: %v, want %s", c, err, c.want)
		}
	}
}

func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}
