import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.util.Arrays;
import net.spy.memcached.BinaryConnectionFactory;
import net.spy.memcached.CachedData;
import net.spy.memcached.ConnectionFactory;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.DefaultConnectionFactory;
import net.spy.memcached.MemcachedClient;
import net.spy.memcached.auth.AuthDescriptor;
import net.spy.memcached.auth.PlainCallbackHandler;
import net.spy.memcached.internal.OperationFuture;
import net.spy.memcached.transcoders.Transcoder;

/**
 * spymemcached's MemcachedClient, told what to do line by line, one answer a line.
 *
 * <pre>
 * MemcachedPeer HOST PORT binary|text [USER PASSWORD]
 *
 * set KEY FLAGS EXPIRY HEX        true or false
 * add KEY FLAGS EXPIRY HEX        true or false
 * delete KEY                      true or false
 * get KEY                         FLAGS HEX, or null
 * setobject KEY TYPE TEXT         true or false; TYPE is string, integer, long, double or boolean
 * getobject KEY                   TYPE TEXT, or null
 * incr KEY BY DEFAULT             the new number
 * flush                           true or false
 * </pre>
 *
 * HEX is "-" for nothing. It ends with its input.
 */
public final class MemcachedPeer {
  private MemcachedPeer() {}

  public static void main(String[] words) throws Exception {
    ConnectionFactory factory =
        words[2].equals("binary") ? new BinaryConnectionFactory() : new DefaultConnectionFactory();
    if (words.length > 3) {
      factory =
          new ConnectionFactoryBuilder()
              .setProtocol(ConnectionFactoryBuilder.Protocol.BINARY)
              .setAuthDescriptor(
                  new AuthDescriptor(
                      new String[] {"PLAIN"}, new PlainCallbackHandler(words[3], words[4])))
              .build();
    }
    MemcachedClient client =
        new MemcachedClient(
            factory, Arrays.asList(new InetSocketAddress(words[0], Integer.parseInt(words[1]))));
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      System.out.println(answer(client, line.split(" ")));
      System.out.flush();
    }
    client.shutdown();
    System.exit(0);
  }

  private static String answer(MemcachedClient client, String[] words) throws Exception {
    String key = words.length > 1 ? words[1] : "";
    switch (words[0]) {
      case "set":
        return done(client.set(key, Integer.parseInt(words[3]), data(words), new Raw()));
      case "add":
        return done(client.add(key, Integer.parseInt(words[3]), data(words), new Raw()));
      case "delete":
        return done(client.delete(key));
      case "get":
        CachedData found = client.get(key, new Raw());
        return found == null
            ? "null"
            : Integer.toUnsignedString(found.getFlags()) + " " + hex(found.getData());
      case "setobject":
        return done(client.set(key, 0, object(words[2], words[3])));
      case "getobject":
        Object value = client.get(key);
        return value == null
            ? "null"
            : value.getClass().getSimpleName().toLowerCase() + " " + value;
      case "incr":
        return Long.toString(
            client.incr(key, Long.parseLong(words[2]), Long.parseLong(words[3])));
      case "flush":
        return done(client.flush());
      default:
        throw new IllegalArgumentException(words[0]);
    }
  }

  private static String done(OperationFuture<Boolean> future) throws Exception {
    return future.get().toString();
  }

  private static Object object(String type, String text) {
    switch (type) {
      case "string":
        return text;
      case "integer":
        return Integer.valueOf(text);
      case "long":
        return Long.valueOf(text);
      case "double":
        return Double.valueOf(text);
      case "boolean":
        return Boolean.valueOf(text);
      default:
        throw new IllegalArgumentException(type);
    }
  }

  private static CachedData data(String[] words) {
    int flags = Integer.parseUnsignedInt(words[2]);
    String text = words[4].equals("-") ? "" : words[4];
    byte[] bytes = new byte[text.length() / 2];
    for (int i = 0; i < bytes.length; i++) {
      bytes[i] = (byte) Integer.parseInt(text.substring(2 * i, 2 * i + 2), 16);
    }
    return new CachedData(flags, bytes, CachedData.MAX_SIZE);
  }

  private static String hex(byte[] bytes) {
    StringBuilder text = new StringBuilder(bytes.length == 0 ? "-" : "");
    for (byte each : bytes) {
      text.append(String.format("%02x", each));
    }
    return text.toString();
  }

  /** Leaves flags and bytes as they are. */
  private static final class Raw implements Transcoder<CachedData> {
    @Override
    public boolean asyncDecode(CachedData data) {
      return false;
    }

    @Override
    public CachedData encode(CachedData data) {
      return data;
    }

    @Override
    public CachedData decode(CachedData data) {
      return data;
    }

    @Override
    public int getMaxSize() {
      return CachedData.MAX_SIZE;
    }
  }
}
