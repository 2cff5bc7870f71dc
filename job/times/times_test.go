package times

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"
)

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// TestNextOverChangesOfTheClock is a table of daylight-saving changes and leap days. The wanted times
// are separated by spaces. "-" means that nothing follows.
func TestNextOverChangesOfTheClock(t *testing.T) {
	for _, c := range []struct{ zone, expression, after, want string }{
		// New York, 2026-03-08: 02:00 becomes 03:00. A skipped time counts at 03:00, once.
		{"America/New_York", "30 2 * * *", "2026-03-07T08:00:00Z", "2026-03-08T07:00:00Z 2026-03-09T06:30:00Z"},
		{"America/New_York", "*/20 2 * * *", "2026-03-07T08:00:00Z", "2026-03-08T07:00:00Z 2026-03-09T06:00:00Z"},
		{"America/New_York", "0 3 * * *", "2026-03-07T09:00:00Z", "2026-03-08T07:00:00Z 2026-03-09T07:00:00Z"},
		// Every hour follows the time line: the skipped hour does not exist.
		{"America/New_York", "30 * * * *", "2026-03-08T06:00:00Z", "2026-03-08T06:30:00Z 2026-03-08T07:30:00Z"},
		// New York, 2026-11-01: 02:00 becomes 01:00. A time that occurs twice counts the first time.
		{"America/New_York", "30 1 * * *", "2026-10-31T12:00:00Z", "2026-11-01T05:30:00Z 2026-11-02T06:30:00Z"},
		{"America/New_York", "30 1-3 * * *", "2026-11-01T05:00:00Z", "2026-11-01T05:30:00Z 2026-11-01T07:30:00Z 2026-11-01T08:30:00Z"},
		{"America/New_York", "30 * * * *", "2026-11-01T05:00:00Z", "2026-11-01T05:30:00Z 2026-11-01T06:30:00Z 2026-11-01T07:30:00Z"},
		// A server that starts between the two equal times does not fire again.
		{"America/New_York", "30 1 * * *", "2026-11-01T06:10:00Z", "2026-11-02T06:30:00Z"},
		{"Europe/Berlin", "15 2 * * *", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z 2026-03-30T00:15:00Z"},
		{"Europe/Berlin", "15 2 * * *", "2026-10-24T12:00:00Z", "2026-10-25T00:15:00Z 2026-10-26T01:15:00Z"},
		// Lord Howe Island changes by half an hour.
		{"Australia/Lord_Howe", "15 2 * * *", "2026-10-03T00:00:00Z", "2026-10-03T15:30:00Z 2026-10-04T15:15:00Z"},
		{"Australia/Lord_Howe", "45 * * * *", "2026-04-04T14:30:00Z", "2026-04-04T14:45:00Z 2026-04-04T15:15:00Z 2026-04-04T16:15:00Z"},
		// Sao Paulo, 2018-11-04: midnight becomes 01:00, so the day begins late.
		{"America/Sao_Paulo", "0 0 * * *", "2018-11-03T12:00:00Z", "2018-11-04T03:00:00Z 2018-11-05T02:00:00Z"},
		// Samoa had no 30 December 2011.
		{"Pacific/Apia", "0 9 * * *", "2011-12-29T12:00:00Z", "2011-12-29T19:00:00Z 2011-12-30T10:00:00Z 2011-12-30T19:00:00Z"},
		{"Asia/Jakarta", "0 6 * * mon-fri", "2026-11-27T00:00:00Z", "2026-11-29T23:00:00Z 2026-11-30T23:00:00Z"},
		{"Asia/Kathmandu", "@daily", "2026-11-28T00:00:00Z", "2026-11-28T18:15:00Z"},
		// Leap days. 2100 has none.
		{"UTC", "0 12 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T12:00:00Z 2032-02-29T12:00:00Z"},
		{"UTC", "0 12 29 2 *", "2096-02-29T12:00:00Z", "2104-02-29T12:00:00Z"},
		{"UTC", "0 0 31 * *", "2026-01-31T00:00:00Z", "2026-03-31T00:00:00Z 2026-05-31T00:00:00Z"},
		{"UTC", "0 0 30 2 *", "2026-01-01T00:00:00Z", "-"},
		{"UTC", "0 0 31 4,6,9,11 *", "2026-01-01T00:00:00Z", "-"},
		// With a day of the month and a weekday, each of them is enough.
		{"UTC", "0 0 13 * fri", "2026-11-01T00:00:00Z", "2026-11-06T00:00:00Z 2026-11-13T00:00:00Z 2026-11-20T00:00:00Z"},
	} {
		p, err := ParseCron(c.expression)
		if err != nil {
			t.Fatalf("%s: %v", c.expression, err)
		}
		r := Rule{Zone: zone(t, c.zone), Patterns: []Pattern{p}}
		check(t, c.zone+" "+c.expression+" after "+c.after, &r, c.after, c.want)
	}
}

func check(t *testing.T, name string, r *Rule, after, want string) {
	t.Helper()
	var got []string
	at := instant(t, after)
	for range strings.Fields(want) {
		next, ok := r.Next(at)
		if !ok {
			got = append(got, "-")
			break
		}
		got, at = append(got, next.Format(time.RFC3339)), next
	}
	if s := strings.Join(got, " "); s != want {
		t.Errorf("%s\n got %s\nwant %s", name, s, want)
	}
}

func TestCalendarsIntervalsAndExclusions(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	calendar := func(d DaysText, at ...string) []Pattern {
		p, err := ParseCalendar(d, at)
		if err != nil {
			t.Fatal(err)
		}
		return []Pattern{p}
	}
	weekend, err := ParseDays(DaysText{Weekdays: "sat,sun"})
	if err != nil {
		t.Fatal(err)
	}
	always, err := ParseDays(DaysText{})
	if err != nil {
		t.Fatal(err)
	}
	hourly, err := ParseCron("@hourly")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name        string
		rule        Rule
		after, want string
	}{
		{"the last day of a month", Rule{Patterns: calendar(DaysText{Days: "-1"}, "18:00", "06:00")}, "2028-02-01T00:00:00Z", "2028-02-29T05:00:00Z 2028-02-29T17:00:00Z 2028-03-31T04:00:00Z"},
		{"second Tuesday and last Friday", Rule{Patterns: calendar(DaysText{Weekdays: "tue#2,fri#-1"}, "12:00:30")}, "2026-11-01T00:00:00Z", "2026-11-10T11:00:30Z 2026-11-27T11:00:30Z 2026-12-08T11:00:30Z"},
		{"a date and a weekday must both match", Rule{Patterns: calendar(DaysText{Days: "29", Months: "feb", Weekdays: "mon"}, "00:00")}, "2026-01-01T00:00:00Z", "2044-02-28T23:00:00Z 2072-02-28T23:00:00Z 2112-02-28T23:00:00Z"},
		{"years end", Rule{Patterns: calendar(DaysText{Years: "2026", Months: "dec", Days: "31"}, "10:00")}, "2026-12-01T00:00:00Z", "2026-12-31T09:00:00Z -"},
		{"an interval from the epoch", Rule{Every: 6 * time.Hour}, "2026-11-28T01:00:00Z", "2026-11-28T06:00:00Z 2026-11-28T12:00:00Z"},
		{"an interval from the start", Rule{Every: 7 * time.Hour, Start: instant(t, "2026-11-28T00:30:00Z")}, "2026-01-01T00:00:00Z", "2026-11-28T00:30:00Z 2026-11-28T07:30:00Z"},
		{"the end", Rule{Every: time.Hour, End: instant(t, "2026-11-28T02:00:00Z")}, "2026-11-28T00:00:00Z", "2026-11-28T01:00:00Z -"},
		{"without weekends", Rule{Patterns: []Pattern{hourly}, Exclude: []Exclusion{{Days: &weekend}}}, "2026-11-27T21:30:00Z", "2026-11-27T22:00:00Z 2026-11-29T23:00:00Z"},
		{"without a holiday", Rule{Every: time.Hour, Exclude: []Exclusion{{From: instant(t, "2026-12-24T00:00:00Z"), Until: instant(t, "2027-01-02T00:00:00Z")}}}, "2026-12-23T22:30:00Z", "2026-12-23T23:00:00Z 2027-01-02T00:00:00Z"},
		{"without any day", Rule{Patterns: []Pattern{hourly}, Exclude: []Exclusion{{Days: &always}}}, "2026-12-23T22:30:00Z", "-"},
		{"until for ever", Rule{Patterns: []Pattern{hourly}, Exclude: []Exclusion{{From: instant(t, "2026-12-24T00:00:00Z")}}}, "2026-12-23T22:30:00Z", "2026-12-23T23:00:00Z -"},
		{"several", Rule{Every: 24 * time.Hour, Patterns: calendar(DaysText{}, "12:00")}, "2026-11-28T00:00:00Z", "2026-11-28T11:00:00Z 2026-11-29T00:00:00Z"},
	} {
		c.rule.Zone = berlin
		check(t, c.name, &c.rule, c.after, c.want)
	}
}

// TestAHostileRuleCostsLittle: patterns that fire once in decades, and days that are excluded for decades, take no
// more than some searches. A submit, a step of the schedule and a list of times each ask for several.
func TestAHostileRuleCostsLittle(t *testing.T) {
	days := func(d DaysText) *Days {
		out, err := ParseDays(d)
		if err != nil {
			t.Fatal(err)
		}
		return &out
	}
	daily, err := ParseCron("0 0 * * *")
	if err != nil {
		t.Fatal(err)
	}
	rare, err := ParseCalendar(DaysText{Months: "feb", Days: "29", Weekdays: "mon"}, []string{"00:00"})
	if err != nil {
		t.Fatal(err)
	}
	patterns := append(slices.Repeat([]Pattern{rare}, 15), daily)
	for _, c := range []struct {
		name    string
		exclude []Exclusion
		want    string // "": none
		looks   int
	}{
		{"no day", nil, "2026-01-02T00:00:00Z", 100},
		{"years", []Exclusion{{Days: days(DaysText{Years: "2026-2079"})}}, "2080-01-01T00:00:00Z", 400},
		{"two sets of days in turn", []Exclusion{{Days: days(DaysText{Years: "2026-2079", Weekdays: "mon,wed,fri"})}, {Days: days(DaysText{Years: "2026-2079", Weekdays: "tue,thu,sat,sun"})}}, "2080-01-01T00:00:00Z", 400},
		{"two sets of days between times", []Exclusion{
			{From: instant(t, "2026-01-01T00:00:00Z"), Until: instant(t, "2079-01-01T00:00:00Z"), Days: days(DaysText{Weekdays: "mon,wed,fri"})},
			{From: instant(t, "2026-01-01T00:00:00Z"), Until: instant(t, "2079-01-01T00:00:00Z"), Days: days(DaysText{Weekdays: "tue,thu,sat,sun"})},
		}, "", 16 * work / perJump},
		{"all days", []Exclusion{{Days: days(DaysText{})}}, "", 400},
	} {
		s := search{rule: &Rule{Zone: time.UTC, Patterns: patterns, Exclude: c.exclude}, parts: make([]part, len(patterns))}
		at, ok := s.next(instant(t, "2026-01-01T12:00:00Z"))
		if got := at.Format(time.RFC3339); ok != (c.want != "") || ok && got != c.want {
			t.Errorf("%s: %s, %t, want %s", c.name, got, ok, c.want)
		}
		if s.looks > c.looks {
			t.Errorf("%s: %d searches of patterns, at most %d are expected", c.name, s.looks, c.looks)
		}
	}
}

func TestTextsThatAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "is empty",
		"* * * *":                       "must have 5 fields",
		"61 * * * *":                    "above maximum",
		"@every 5m":                     "every: 90m",
		"TZ=0":                          "time_zone",
		"CRON_TZ=UTC 0 0 * * *":         "time_zone",
		"@nonsense":                     "unrecognized",
		strings.Repeat("1,", 200) + "1": "limit is 256",
		"0 0 * * funday":                "parse",
	} {
		if _, err := ParseCron(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	for _, c := range []struct {
		days DaysText
		want string
	}{
		{DaysText{Months: "january"}, "months: \"january\" is not one of jan"},
		{DaysText{Days: "32"}, "days: 32 is not within 1..31"},
		{DaysText{Days: "-40"}, "days: -40 is not within -31..-1"},
		{DaysText{Days: "9-3"}, "days: 9-3 runs backwards"},
		{DaysText{Weekdays: "mon#6"}, "weekdays: \"mon#6\" is not a weekday of a month"},
		{DaysText{Years: "1900"}, "years: 1900 is not within 1970..2399"},
		{DaysText{Years: "x"}, "years: \"x\" is not a number"},
	} {
		if _, err := ParseDays(c.days); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %q", c.days, err, c.want)
		}
	}
	for _, at := range [][]string{nil, {"24:00"}, {"9"}, make([]string, 49)} {
		if _, err := ParseCalendar(DaysText{}, at); err == nil {
			t.Errorf("times %q are accepted", at)
		}
	}
}

func TestMoments(t *testing.T) {
	for text, want := range map[string]string{
		"2026-12-24": "2026-12-23T23:00:00Z date", "2026-12-24T18:00": "2026-12-24T17:00:00Z time", "2026-03-29T02:30:00": "2026-03-29T01:00:00Z time",
		"2026-12-24T18:00:00+05:30": "2026-12-24T12:30:00Z time",
	} {
		at, date, err := ParseMoment(text, zone(t, "Europe/Berlin"))
		got := at.UTC().Format(time.RFC3339) + map[bool]string{true: " date", false: " time"}[date]
		if err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", text, got, err, want)
		}
	}
	if _, _, err := ParseMoment("tomorrow", time.UTC); err == nil {
		t.Error("tomorrow is accepted")
	}
	if got := NextDay(instant(t, "2026-12-24T22:30:00Z"), zone(t, "Europe/Berlin")); !got.Equal(instant(t, "2026-12-24T23:00:00Z")) {
		t.Errorf("the next day begins at %s", got)
	}
}

// sets are the fields of a random cron expression.
type sets struct {
	minutes, hours, monthDays, months, weekdays []int // nil: *
}

func (s sets) text() string {
	var out []string
	for _, f := range [][]int{s.minutes, s.hours, s.monthDays, s.months, s.weekdays} {
		text := "*"
		if f != nil {
			text = strings.Trim(strings.ReplaceAll(fmt.Sprint(f), " ", ","), "[]")
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func in(set []int, v int) bool {
	for _, s := range set {
		if s == v {
			return true
		}
	}
	return set == nil
}

// match reports whether a reading of the wall matches.
func (s sets) match(w time.Time) bool {
	day, weekday := in(s.monthDays, w.Day()), in(s.weekdays, int(w.Weekday()))
	either := s.monthDays != nil && s.weekdays != nil
	return in(s.minutes, w.Minute()) && in(s.hours, w.Hour()) && in(s.months, int(w.Month())) && (day && weekday || either && (day || weekday))
}

// oracle walks the time line minute by minute. It returns the times after a time at which the
// expression fires, up to another time.
func (s sets) oracle(zone *time.Location, after, until time.Time) (out []string) {
	onWall := func(t time.Time) time.Time {
		l := t.In(zone)
		return time.Date(l.Year(), l.Month(), l.Day(), l.Hour(), l.Minute(), 0, 0, time.UTC)
	}
	t := after.Truncate(time.Minute).Add(-72 * time.Hour)
	seen := onWall(t) // the latest reading that the wall has shown
	for ; !t.After(until); t = t.Add(time.Minute) {
		w := onWall(t)
		fires := s.hours == nil && s.match(w)
		for s.hours != nil && seen.Before(w) {
			seen = seen.Add(time.Minute)
			fires = fires || s.match(seen)
		}
		if fires && t.After(after) {
			out = append(out, t.UTC().Format(time.RFC3339))
		}
	}
	return out
}

// TestNextAgainstAWalk compares the next times of random expressions, in windows around changes of the
// clock and elsewhere, with a walk minute by minute.
func TestNextAgainstAWalk(t *testing.T) {
	t.Parallel()
	zones := []string{
		"UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia", "Asia/Kathmandu",
		"Africa/Casablanca", "America/Havana", "Asia/Beirut", "Antarctica/Troll", "America/St_Johns", "Pacific/Chatham", "Asia/Tehran",
	}
	const seed = 20261128
	r := rand.New(rand.NewPCG(seed, 1))
	set := func(chance float64, low, high int) []int {
		if r.Float64() > chance {
			return nil
		}
		var out []int
		for range 1 + r.IntN(4) {
			if v := low + r.IntN(high-low+1); !in(append(out, -1), v) {
				out = append(out, v)
			}
		}
		return out
	}
	fired := 0
	for n := range 400 {
		z := zone(t, zones[r.IntN(len(zones))])
		s := sets{minutes: set(0.9, 0, 59), hours: set(0.7, 0, 5), monthDays: set(0.3, 1, 31), months: set(0.2, 1, 12), weekdays: set(0.3, 0, 6)}
		after := time.Unix(1_100_000_000+r.Int64N(800_000_000), 0) // 2004 to 2030
		if _, end := after.In(z).ZoneBounds(); r.IntN(4) > 0 && !end.IsZero() && end.Year() < 2040 {
			after = end.Add(-time.Duration(r.Int64N(int64(40 * time.Hour)))).Truncate(time.Second)
		}
		until := after.Add(72 * time.Hour)
		want := s.oracle(z, after, until)
		p, err := ParseCron(s.text())
		if err != nil {
			t.Fatalf("%s: %v", s.text(), err)
		}
		rule := Rule{Zone: z, Patterns: []Pattern{p}}
		var got []string
		for at := after; ; {
			next, ok := rule.Next(at)
			if !ok || next.After(until) {
				break
			}
			got, at = append(got, next.Format(time.RFC3339)), next
		}
		if g, w := strings.Join(got, " "), strings.Join(want, " "); g != w {
			t.Fatalf("seed %d, case %d: %q in %s after %s\n got %s\nwant %s", seed, n, s.text(), z, after.UTC().Format(time.RFC3339), g, w)
		}
		fired += len(want)
	}
	if fired < 2_500 {
		t.Errorf("only %d times were compared", fired)
	}
}

// TestExclusionsAgainstAWalk compares rules of several patterns, an interval and exclusions with a walk over the
// times of each pattern alone.
func TestExclusionsAgainstAWalk(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(20261129, 1))
	zones := []string{"UTC", "America/New_York", "Australia/Lord_Howe", "America/Havana", "Pacific/Apia"}
	pick := func(some ...string) string { return some[r.IntN(len(some))] }
	compared, skipped := 0, 0
	for n := range 300 {
		z := zone(t, zones[r.IntN(len(zones))])
		after := time.Unix(1_300_000_000+r.Int64N(600_000_000), 0)
		if _, end := after.In(z).ZoneBounds(); r.IntN(2) > 0 && !end.IsZero() && end.Year() < 2040 {
			after = end.Add(-time.Duration(r.Int64N(int64(90 * time.Hour)))).Truncate(time.Second)
		}
		rule := Rule{Zone: z}
		for range 1 + r.IntN(4) {
			p, err := ParseCron(pick("0", "30", "*/20") + " " + pick("*", "0", "*/6", "1,2") + " " + pick("*", "*", "1,15", "29") + " * " + pick("*", "*", "mon", "sat,sun"))
			if err != nil {
				t.Fatal(err)
			}
			rule.Patterns = append(rule.Patterns, p)
		}
		if r.IntN(3) == 0 {
			rule.Every = time.Duration(1+r.IntN(30)) * time.Hour
		}
		for range r.IntN(4) {
			var e Exclusion
			if r.IntN(3) == 0 {
				e.From = after.Add(time.Duration(r.Int64N(int64(100 * time.Hour)))).Truncate(time.Second)
			}
			if r.IntN(3) == 0 {
				e.Until = cmp.Or(e.From, after).Add(time.Duration(r.Int64N(int64(300 * time.Hour)))).Truncate(time.Second)
			}
			d, err := ParseDays(DaysText{Weekdays: pick("mon-fri", "sat,sun", "tue", "mon,wed,fri"), Days: pick("", "", "1-20", "-1")})
			if err != nil {
				t.Fatal(err)
			}
			if e.From.IsZero() || e.Until.IsZero() || r.IntN(2) == 0 {
				e.Days = &d
			}
			rule.Exclude = append(rule.Exclude, e)
		}
		alone := []Rule{{Zone: z, Every: rule.Every}}
		for _, p := range rule.Patterns {
			alone = append(alone, Rule{Zone: z, Patterns: []Pattern{p}})
		}
		got, want := after, after
		for range 10 {
			var ok, found bool
			got, ok = rule.Next(got)
			for tries := 0; tries < 2000; tries++ {
				var first time.Time
				for _, a := range alone {
					if at, some := a.Next(want); some && (first.IsZero() || at.Before(first)) {
						first = at
					}
				}
				want, found = first, !excludedAt(&rule, first)
				if found {
					break
				}
				skipped++
			}
			if !found {
				break // the walk is too long
			}
			if compared++; !ok || !got.Equal(want) {
				t.Fatalf("case %d (%+v) in %s after %s: got %s, %t, want %s", n, rule, z, after.UTC(), got, ok, want)
			}
		}
	}
	if compared < 2000 || skipped < 2000 {
		t.Errorf("only %d times were compared, and %d were excluded", compared, skipped)
	}
}

func excludedAt(r *Rule, t time.Time) bool {
	return slices.ContainsFunc(r.Exclude, func(e Exclusion) bool {
		year, month, day := t.In(r.Zone).Date()
		return !t.Before(e.From) && (e.Until.IsZero() || t.Before(e.Until)) && (e.Days == nil || e.Days.days.match(time.Date(year, month, day, 0, 0, 0, 0, time.UTC)))
	})
}
