// Package clienttest has a server in memory for the tests of programs that use package client.
// The server stores jobs, and each job runs at once unless the test says otherwise. The server
// does not schedule: it knows no nodes and checks only what package client relies on.
//
//		s := clienttest.New()
//		defer s.Close()
//		c := s.Client()
//		s.Fail("Submit", client.ErrFull, 1) // the next submit is refused
//
//	  - server.go: Server, failures and breaks on demand
//	  - jobs.go: the service Jobs
//	  - others.go: the services Regions, Events and System
package clienttest
