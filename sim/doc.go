// Package sim runs whole federations in virtual time: the real roles over simnet,
// the in-memory twin of the store, and the mock driver. Everything here belongs
// inside a testing/synctest bubble.
//
//	federation.go   starts, stops, kills and cuts the processes of a federation
//	                (faults_test.go makes such faults at random)
//	inspect.go      submits jobs, and checks what really runs and who owns what
//	pretend.go      the mock driver under the name of the process driver
//
// Package sim/world runs the same cores on one goroutine, thousands of federations a
// minute.
package sim
