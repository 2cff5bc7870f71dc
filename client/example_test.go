package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nusa-scheduler/nusa/client"
	"github.com/nusa-scheduler/nusa/client/clienttest"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// A program that submits a job and waits until it runs. The server of the example is in memory; a
// real program calls client.Open.
func Example() {
	s := clienttest.New()
	defer s.Close()
	c := s.Client()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	out, err := c.Submit(ctx, &nusav1.SubmitRequest{Spec: &nusav1.JobSpec{Namespace: "default", Name: "api"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	job, err := c.WaitRunning(ctx, &nusav1.JobRef{Namespace: "default", Name: "api"}, out.GetVersion())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("version", job.GetVersion(), job.GetStatus().GetState())
	// Output: version 1 JOB_STATE_RUNNING
}

func ExampleOpen() {
	c, err := client.Open(client.Options{
		Addresses: []string{"g1.example.com:7600", "g2.example.com:7600"},
		Identity:  "/etc/nusa/operator", // cert.pem, key.pem, roots.pem
	})
	if err != nil {
		fmt.Println("no folder here")
		return
	}
	defer c.Close()
	// Output: no folder here
}

func ExampleError() {
	s := clienttest.New()
	defer s.Close()
	c := s.Client()
	defer c.Close()

	_, err := c.Jobs().Submit(context.Background(), &nusav1.SubmitRequest{Spec: &nusav1.JobSpec{}})
	var wrong *client.Error
	switch {
	case errors.Is(err, client.ErrFull):
		fmt.Println("try again later")
	case errors.Is(err, client.ErrInvalid) && errors.As(err, &wrong):
		for _, p := range wrong.Problems {
			fmt.Println(p.GetField(), p.GetMessage())
		}
	}
	// Output: name is missing
}

func ExampleClient_WatchEvents() {
	s := clienttest.New()
	defer s.Close()
	c := s.Client()
	defer c.Close()

	s.AddEvent("region.lost", "japaneast", "silent for 1m")
	s.AddEvent("node.lost", "n1", "")
	for e, err := range c.WatchEvents(context.Background(), &nusav1.WatchEventsRequest{Token: "0", Types: []string{"region."}}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(e.GetNumber(), e.GetType(), e.GetSubject())
		break
	}
	// Output: 1 region.lost japaneast
}
