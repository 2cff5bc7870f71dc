package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/topology"
)

func (w *world) region(name string, args []string) error {
	r := w.regions[name]
	if r == nil {
		r = &Region{
			Name: name, Connected: true, HasReport: true, ReportAge: 2 * time.Second, ReportSequence: 1,
			SlotsRevision: w.revision, NodesReady: 3,
			Free: Resources{8000, 16 << 30, 0, 0}, Capacity: Resources{10000, 20 << 30, 0, 0},
		}
		w.regions[name], w.fits[name] = r, map[string]int{}
	}
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		number, _ := strconv.Atoi(value)
		dur, _ := time.ParseDuration(value)
		switch {
		case key == "fits":
			w.fits[name][""] = number
		case strings.HasPrefix(key, "fits."):
			w.fits[name][key[5:]] = number
		case key == "bins":
			r.Bins = nil
			for _, b := range strings.Split(value, ",") {
				nodes, rest, _ := strings.Cut(b, "x")
				amount, pool, _ := strings.Cut(rest, "@")
				n, _ := strconv.Atoi(nodes)
				r.Bins = append(r.Bins, Bin{Nodes: n, Free: amountOf(amount), Pool: pool})
			}
		case key == "labels":
			r.Labels = map[string]string{}
			for _, l := range strings.Split(value, ",") {
				k, v, _ := strings.Cut(l, ":")
				r.Labels[k] = v
			}
		case key == "drivers":
			r.Drivers = strings.Split(value, ",")
		case key == "free":
			r.Free = amountOf(value)
		case key == "capacity":
			r.Capacity = amountOf(value)
		case key == "nodes":
			r.NodesReady = number
		case key == "age":
			r.ReportAge = dur
		case key == "report": // a new report that includes every slot
			r.ReportSequence++
			r.SlotsRevision = w.revision
		case key == "cordoned":
			r.Cordoned = value != "no"
		case key == "lost":
			r.Lost = value != "no"
		case key == "draining":
			r.Draining = value != "no"
		case key == "healthy":
			r.HealthyFor = dur
		case key == "unsteady":
			r.Unsteady = value != "no"
		case key == "returning":
			r.Returning = value != "no"
		case key == "blocked":
			r.CommitBlocked = dur
		case key == "behind":
			r.Behind = value != "no"
		case key == "level":
			r.FeatureLevel = number
		case key == "noreport":
			r.HasReport = false
		case key == "neverconnected":
			r.Connected, r.NeverConnected = false, true
		case key == "disconnected":
			r.Connected, r.DisconnectedFor = dur == 0, dur
		case key == "gone":
			delete(w.regions, name)
		default:
			return fmt.Errorf("unknown word %q", a)
		}
	}
	return nil
}

// amountOf reads "2000/4" as 2000 thousandths of a core and 4 GiB.
func amountOf(s string) Resources {
	c, m, _ := strings.Cut(s, "/")
	cpu, _ := strconv.ParseInt(c, 10, 64)
	mem, _ := strconv.ParseInt(m, 10, 64)
	return Resources{CPUMilli: cpu, MemoryBytes: mem << 30}
}

func (w *world) rtt(args []string) error {
	e := topology.Edge{State: topology.OK, Source: topology.Measured, Age: 12 * time.Second, Samples: 10, Method: "udp"}
	for _, a := range args[2:] {
		switch {
		case a == "stale":
			e.State = topology.Stale
		case a == "unreachable":
			e.State = topology.Unreachable
		case a == "none":
			e = topology.Edge{}
		case strings.HasPrefix(a, "age="):
			e.Age, _ = time.ParseDuration(a[4:])
		default:
			d, err := time.ParseDuration(a)
			if err != nil {
				return err
			}
			e.P50, e.P90, e.P99, e.Min = d, d*11/10, d*13/10, d
		}
	}
	for _, pair := range [][2]string{{args[0], args[1]}, {args[1], args[0]}} {
		e.From, e.To = pair[0], pair[1]
		w.edges[pair] = e
	}
	return nil
}

func (w *world) find(name string) *Job {
	i := slices.IndexFunc(w.jobs, func(j *Job) bool { return j.Name == name })
	if i < 0 {
		return nil
	}
	return w.jobs[i]
}

func (w *world) job(name string, args []string) error {
	j := w.find(name)
	if j == nil {
		w.revision++
		j = &Job{Namespace: "default", Name: name, Version: 1, Type: Service, Priority: 50, Revision: w.revision}
		w.jobs = append(w.jobs, j)
	}
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		n, _ := strconv.Atoi(value)
		switch key {
		case "type":
			j.Type = JobType(value)
		case "v":
			j.Version = int64(n)
		case "run":
			j.Run = int64(n)
		case "prio":
			j.Priority = n
		case "rev":
			j.Revision = int64(n)
		case "stopped":
			j.Stopped = value != "no"
		case "explain":
			j.Explain = value != "no"
		case "held": // a rollout is paused, or its canaries are not promoted
			j.RolloutHold = strings.ReplaceAll(value, "_", " ")
		case "paused": // by an operator
			j.Paused = value != "no"
		case "stable": // the present groups are those of the latest version that ran with all instances
			was := *j
			was.Groups, was.Stable, was.Version = slices.Clone(j.Groups), nil, int64(n)
			j.KeepStable(&was)
		case "order": // its rollout is stored
			names, most, _ := strings.Cut(value, "*")
			j.RegionOrder = &RegionOrder{Stored: true, MaxParallel: 1}
			if names != "" {
				j.RegionOrder.First = strings.Split(names, ",")
			}
			if most != "" {
				j.RegionOrder.MaxParallel, _ = strconv.Atoi(most)
			}
		case "continue":
			j.RegionOrder.Continue = true
		case "pause":
			left, after, _ := strings.Cut(value, "@")
			j.RegionOrder.PauseLeft, _ = time.ParseDuration(left)
			j.RegionOrder.After = after
		case "resumed": // what has failed is tried again
			maps.DeleteFunc(j.RegionOrder.Ended, func(_, why string) bool { return why != "" })
		default:
			return fmt.Errorf("unknown word %q", a)
		}
	}
	return nil
}

func (w *world) group(path string, args []string) error {
	job, name, _ := strings.Cut(path, "/")
	j := w.find(job)
	if j.group(name) == nil {
		j.Groups = append(j.Groups, Group{Name: name, Count: 1, Ask: Ask{CPUMilli: 1000, MemoryBytes: 1 << 30}, OnDisconnect: OnDisconnect{Replace: true}})
		slices.SortFunc(j.Groups, func(a, b Group) int { return cmp.Compare(a.Name, b.Name) })
	}
	g := j.group(name)
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		n, _ := strconv.Atoi(value)
		switch key {
		case "count":
			g.Count = n
		case "canaries":
			g.CanaryFrom = n
		case "since":
			g.UnchangedSince = int64(n)
		case "cpu":
			g.Ask.CPUMilli = int64(n)
		case "mem":
			g.Ask.MemoryBytes = int64(n) << 30
		case "pool":
			g.Ask.Pool = value
		case "driver":
			g.Ask.Drivers = []string{value}
		case "parallel":
			g.MaxParallel = n
		case "atonce":
			g.Parallel = n
		case "patience":
			g.OnDisconnect.After, _ = time.ParseDuration(value)
		case "failback":
			mode, after, _ := strings.Cut(value, "*")
			g.OnDisconnect.Failback.Mode = FailbackMode(mode)
			g.OnDisconnect.Failback.After, _ = time.ParseDuration(after)
		case "stop": // kill_timeout of a bound group
			g.Bound = value != "no"
			g.StopTime, _ = time.ParseDuration(value)
		case "waited":
			g.WaitedFor, _ = time.ParseDuration(value)
		case "attempts": // sea*5m;jpe*1h
			g.HoldAttempts = nil
			for _, s := range strings.Split(value, ";") {
				name, ago, _ := strings.Cut(s, "*")
				d, _ := time.ParseDuration(ago)
				g.HoldAttempts = append(g.HoldAttempts, HoldAttempt{name, d})
			}
		case "down":
			j.Down = map[string]int{name: n}
		case "ports":
			g.Ask.StaticPorts = []int{n}
		case "allow":
			g.Regions.Allow = nil
			for _, s := range strings.Split(value, ";") {
				g.Regions.Allow = append(g.Regions.Allow, selectorOf(s))
			}
		case "prefer":
			g.Regions.Prefer = nil
			for _, s := range strings.Split(value, ";") {
				sel, weight, _ := strings.Cut(s, "*")
				k, _ := strconv.Atoi(weight)
				g.Regions.Prefer = append(g.Regions.Prefer, Preference{selectorOf(sel), k})
			}
		case "near":
			g.Regions.Near = nil
			for _, s := range strings.Split(value, ";") {
				g.Regions.Near = append(g.Regions.Near, nearOf(s))
			}
		case "spread":
			least, most, _ := strings.Cut(value, "-")
			g.Regions.SpreadMin, _ = strconv.Atoi(least)
			g.Regions.SpreadMax, _ = strconv.Atoi(most)
		case "divide":
			g.Regions.Divide = Divide(value)
		case "refused": // the nodes of these regions do not accept its config
			g.Refused = refusedBy(name, value)
		case "wasrefused": // nor that of the stable version
			g.RefusedStable = refusedBy(name, value)
		case "none":
			j.Groups = slices.DeleteFunc(j.Groups, func(g Group) bool { return g.Name == name })
		default:
			return fmt.Errorf("unknown word %q", a)
		}
	}
	return nil
}

func refusedBy(group, regions string) map[string]string {
	out := map[string]string{}
	for _, at := range strings.FieldsFunc(regions, func(r rune) bool { return r == ';' }) {
		out[at] = "driver vm of its nodes does not accept groups." + group + ".tasks.main.config.x: unknown field"
	}
	return out
}

// selectorOf reads "sea", "k:v" or "sea,k:v".
func selectorOf(s string) Selector {
	sel := Selector{}
	for _, word := range strings.Split(s, ",") {
		if k, v, label := strings.Cut(word, ":"); label {
			if sel.Labels == nil {
				sel.Labels = map[string]string{}
			}
			sel.Labels[k] = v
		} else {
			sel.Name = word
		}
	}
	return sel
}

func nearOf(s string) Near {
	words := strings.Split(s, ",")
	n := Near{Weight: 50}
	if point, ok := strings.CutPrefix(words[0], "@"); ok {
		lat, lon, _ := strings.Cut(point, "/")
		n.Location = &topology.Location{}
		n.Location.Latitude, _ = strconv.ParseFloat(lat, 64)
		n.Location.Longitude, _ = strconv.ParseFloat(lon, 64)
	} else if domain, ok := strings.CutPrefix(words[0], "domain="); ok {
		n.Domain = domain
	} else {
		n.Selector = selectorOf(words[0])
	}
	for _, word := range words[1:] {
		k, numbered := strconv.Atoi(word[1:])
		switch {
		case word == "required":
			n.Required = true
		case word[0] == 'p' && numbered == nil:
			n.Percentile = topology.Percentile(k)
		case word[0] == 'w' && numbered == nil:
			n.Weight = k
		case word == "refuse" || word == "predicted" || word == "accept":
			n.Unknown = Unknown(word)
		default:
			n.MaxRTT, _ = time.ParseDuration(word)
		}
	}
	return n
}
